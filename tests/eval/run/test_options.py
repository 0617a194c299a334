"""Defaults of an evaluation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from d2e_sft.judge.options import EndpointOptions
from eval.run.options import EvalOptions, resolve_options, warn_of_idle_options

ENDPOINT = EvalOptions(endpoint=EndpointOptions(base_url="http://127.0.0.1:9/v1"))


def test_a_model_without_a_recipe_is_decoded_plainly_in_process() -> None:
    config = resolve_options("no/recipe", EvalOptions())
    assert (config.engine, config.decoding.alpha, config.prompt_set) == ("transformers", 0.0, "default")
    assert config.decoding.max_new_tokens < resolve_options("m", EvalOptions(setting="cot")).decoding.max_new_tokens


def test_options_of_decoding_and_of_the_engine_reach_it() -> None:
    assert resolve_options("m", EvalOptions(compiled=True)).decoding.compiled
    assert resolve_options("m", ENDPOINT).engine == "openai"
    assert resolve_options("m", replace(ENDPOINT, engine="vllm")).engine == "vllm"


@pytest.mark.parametrize(("alpha", "given", "warned"), [(0.3, None, True), (0.3, 0.0, False), (0.0, None, False)])
def test_a_run_that_is_decoded_debiased_is_asked_plainly_at_an_endpoint_with_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], alpha: float, given: float | None, warned: bool
) -> None:
    data = "{train: r.parquet, prompt_set: mine, form: completion}"
    recipe = f"data: {data}\ntrain: {{output_dir: x}}\nd2e: {{alpha: {alpha}}}\n"
    (tmp_path / "recipe.yaml").write_text(recipe)
    config = resolve_options(str(tmp_path), replace(ENDPOINT, alpha=given))
    assert (config.decoding.alpha, config.prompt_set, config.form) == (0, "mine", "completion"), "as it was trained"
    warn_of_idle_options(str(tmp_path), config)
    told = "is otherwise decoded debiased with α = 0.3; an endpoint decodes plainly"
    assert (told in " ".join(capsys.readouterr().err.split())) == warned


def test_without_context_nothing_is_subtracted_or_cut_off() -> None:
    asked = EvalOptions(alpha=0.7, plausibility=0.1)
    read, not_read = resolve_options("m", asked), resolve_options("m", replace(asked, without_context=True))
    assert (read.decoding.alpha, read.decoding.plausibility) == (0.7, 0.1)
    assert (not_read.decoding.alpha, not_read.decoding.plausibility) == (0.0, 0.0)


@pytest.mark.parametrize(("fast", "dtype"), [(True, "bfloat16"), (False, "float32")])
def test_auto_is_the_dtype_that_this_machine_computes_fast(
    monkeypatch: pytest.MonkeyPatch, fast: bool, dtype: str
) -> None:
    monkeypatch.setattr("d2e_sft.model.device.has_bfloat16", lambda: fast)
    assert resolve_options("m", EvalOptions(dtype="auto")).options.dtype == dtype
    assert resolve_options("m", EvalOptions(dtype="auto", engine="vllm")).options.dtype == "auto"
    assert resolve_options("m", EvalOptions()).options.dtype is None
