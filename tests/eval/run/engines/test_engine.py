"""An engine by name, and which model it is that decodes."""

from __future__ import annotations

from pathlib import Path

from d2e_sft.judge.options import EndpointOptions
from d2e_sft.model.storage.folder import model_identity
from eval.run.engines.engine import identity_of, make_engine
from eval.run.options import EvalOptions, resolve_options
from eval.run.processes import Processes, join_processes

URL = "http://127.0.0.1:9/v1"
ENDPOINT = EvalOptions(endpoint=EndpointOptions(base_url=URL + "/"))


def test_an_endpoint_is_told_by_address_and_name_and_a_model_by_its_content(world: Path) -> None:
    assert identity_of("gpt", resolve_options("gpt", ENDPOINT)) == f"gpt at {URL}"
    model = str(world / "model")
    assert identity_of(model, resolve_options(model, EvalOptions())) == model_identity(model)


def test_the_engine_is_the_one_that_was_asked_for(world: Path) -> None:
    endpoint = make_engine("gpt", resolve_options("gpt", ENDPOINT), Processes())
    assert (endpoint.name, endpoint.counts, endpoint.environment()) == ("openai", {"retried": 0}, {"endpoint": URL})
    config = resolve_options(str(world / "model"), EvalOptions(dtype="bfloat16"))
    engine = make_engine(str(world / "model"), config, join_processes("transformers"))
    assert (engine.name, engine.counts, engine.environment()["dtype"]) == ("transformers", {}, "bfloat16")
