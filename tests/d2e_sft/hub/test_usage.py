"""Exported models where this package is missing: transformers alone decodes them debiased."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.sample import EventSample
from d2e_sft.data.views import ViewEncoder
from d2e_sft.decoding import DecodingConfig, generate_debiased, stop_token_ids
from d2e_sft.hub.card import example_conversation
from d2e_sft.hub.export import ExportOptions, export
from d2e_sft.hub.push import push
from d2e_sft.model.loading import load_model
from tests.d2e_sft.decoding.pairs import random_prompts
from tests.d2e_sft.hub.padded import answers, pairs
from tests.d2e_sft.hub.runs import card_code, make_run, run_elsewhere
from tests.hub_server import running_hub

SHOW = "\nprint('TOKENS', output.tolist())\n"
DECODE = """
import torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained({load})
inputs = {{name: torch.tensor(value) for name, value in {inputs}.items()}}
output = model.generate(**inputs, alpha=0.9, do_sample=False, max_new_tokens=12{call})
"""
EXAMPLE = EventSample(
    id="1", dataset="d", split="test", relation="causal", format="qa", question="Why was the road gone?",
    context="The dam broke at noon. By one the road was gone.", options=[], answers=["the dam broke"],
    refined_context=None,
)  # fmt: skip
PROMPTS = random_prompts(4, 8, 40, seed=1), random_prompts(4, 3, 12, seed=2)
RUNS = {  # kind, changes of the recipe, whether an adapter was trained
    "llama": ("llama", ["d2e.alpha=0.8"], False),
    "t5": ("t5", [], False),
    "qwen2": ("qwen2", [], False),
    "adapter": ("llama", [], True),
    "merged": ("llama", [], True),
}


def tokens_of(printed: str) -> list[Any]:
    lines = [line.removeprefix("TOKENS") for line in printed.splitlines() if line.startswith("TOKENS")]
    return [json.loads(line) for line in lines]


def expected_answer(run: Path, alpha: float) -> list[int]:
    loaded = load_model(str(run))
    model = loaded.model.eval()
    encoder = ViewEncoder(
        loaded.tokenizer, load_prompt_set("default"), ("original", "imagined"),
        encoder_decoder=model.config.is_encoder_decoder,
    )  # fmt: skip
    original, imagined = (encoder.prompt_ids(EXAMPLE, view) for view in ("original", "imagined"))
    stops, decoding = stop_token_ids(model, encoder.end_of_turn), DecodingConfig(alpha=alpha, max_new_tokens=12)
    [debiased] = generate_debiased(model, [original], [imagined], decoding, stop_ids=stops)
    [plain] = generate_debiased(model, [original], decoding=replace(decoding, alpha=0), stop_ids=stops)
    assert debiased not in ([], plain)
    return debiased


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs and their exports: NAME/runs/tiny and NAME/out."""
    world = tmp_path_factory.mktemp("usage")
    for name, (kind, changes, lora) in RUNS.items():
        run = make_run(world / name, kind, *changes, lora=lora)
        export(run, world / name / "out", ExportOptions(merge=name == "merged"))
    return world


@pytest.fixture(scope="module")
def outputs(world: Path) -> dict[str, Any]:
    """What the programs print, all in one process that cannot import this package."""
    inputs = {name: tensor.tolist() for name, tensor in pairs(*PROMPTS).items()}
    llama, qwen2 = (repr(str(world / name / "out")) for name in ("llama", "qwen2"))
    programs = {name: card_code(world / name / "out") for name in ("llama", "t5", "adapter", "merged")}
    programs["default"] = programs["llama"].replace("    alpha=0.8,\n", "")
    programs["plain"] = programs["default"].replace("do_sample=False", "do_sample=False, alpha=0.0")
    programs["batch"] = DECODE.format(load=f"{llama}, trust_remote_code=True", call="", inputs=inputs)
    call = f", custom_generate={qwen2}, trust_remote_code=True"
    programs["custom batch"] = DECODE.format(load=qwen2, call=call, inputs=inputs)
    denied = "try:\n    import d2e_sft\nexcept ModuleNotFoundError:\n    output = torch.zeros(1)\n"
    with pytest.MonkeyPatch.context() as patch, running_hub(patch) as hub:
        push(world / "qwen2" / "runs" / "tiny", "team/tiny")
        (world / "README.md").write_bytes(hub.files["team/tiny"]["README.md"])
        programs["qwen2"] = card_code(world)
        assert 'NAME = "team/tiny"' in programs["qwen2"], "it is loaded from the Hub"
        text = "".join(program + SHOW for program in (*programs.values(), "import torch\n" + denied))
        environment = {"HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1"}
        *found, refused = tokens_of(run_elsewhere(text, world / "elsewhere", **environment))
    assert refused == [0], "this package can be imported"
    return dict(zip(programs, found, strict=True))


@pytest.mark.parametrize("name", ["llama", "t5", "adapter", "merged", "qwen2"])
def test_the_cards_program_gives_the_answer_of_this_package(world: Path, outputs: dict[str, Any], name: str) -> None:
    """Compare the last tokens, without a stop token."""
    ids = outputs[name][0]
    end = len(ids) - (ids[-1] == 1)
    expected = expected_answer(world / name / "runs" / "tiny", 0.8 if name == "llama" else 0.5)
    assert ids[end - len(expected) : end] == expected


def test_the_default_alpha_is_that_of_the_run(outputs: dict[str, Any]) -> None:
    assert outputs["default"] == outputs["llama"] != outputs["plain"]


@pytest.mark.parametrize(("name", "kind"), [("batch", "llama"), ("custom batch", "qwen2")])
def test_a_padded_batch_gives_the_tokens_of_generate_debiased(
    world: Path, outputs: dict[str, Any], name: str, kind: str
) -> None:
    model = load_model(str(world / kind / "runs" / "tiny")).model.eval()
    ours = generate_debiased(model, *PROMPTS, DecodingConfig(alpha=0.9, max_new_tokens=12))
    width = max(map(len, PROMPTS[0]))
    assert answers(torch.tensor(outputs[name]), width, [1]) == ours


ASKED = "How long may I return the lamp?"


@pytest.mark.parametrize(
    ("said", "original", "imagined"),
    [
        (
            {"prompt": "Policy: {context}\nCustomer: {question}", "system": "Be kind."},
            ["Be kind.", f"Policy: P.\nCustomer: {ASKED}"],
            ["Be kind.", f"Customer: {ASKED}"],
        ),
        ({"context_in": "<doc>"}, [f"<doc>P.</doc>\n{ASKED}"], [ASKED]),
        ({"context_in": "system"}, ["P.", ASKED], [ASKED]),
        ({"columns": {"context": "policy"}}, [f"P.\n\n{ASKED}"], [ASKED]),
    ],
)
def test_a_card_of_chat_data_words_its_example_as_the_data(
    said: dict[str, Any], original: list[str], imagined: list[str]
) -> None:
    conversation = example_conversation(said)
    assert [turn["content"] for turn in conversation.messages("P.")] == original
    assert [turn["content"] for turn in conversation.messages("")] == imagined
