"""Exported models where this package is missing: transformers alone decodes them debiased."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.sample import EventSample
from d2e_sft.data.views import ViewEncoder
from d2e_sft.decoding import DecodingConfig, generate_debiased, stop_token_ids
from d2e_sft.hub.export import export
from d2e_sft.hub.push import push
from d2e_sft.hub.usage import example_conversation
from d2e_sft.hub.weights import ExportOptions
from d2e_sft.model.loading import load_model
from tests.d2e_sft.decoding.pairs import random_prompts
from tests.d2e_sft.hub.padded import answers, pairs
from tests.d2e_sft.hub.runs import card_code, make_run, run_elsewhere
from tests.hub_server import HubServer

OFFLINE = {"HF_HUB_OFFLINE": "1"}
_SHOW = "\nprint('TOKENS', output.tolist())\n"
_DECODE = """
import json, sys, torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained({load})
inputs = {{name: torch.tensor(value) for name, value in json.loads({inputs!r}).items()}}
output = model.generate(**inputs, alpha={alpha}, do_sample=False, max_new_tokens=12{call})
"""


def _tokens(printed: str) -> Any:
    return json.loads(next(line for line in printed.splitlines() if line.startswith("TOKENS")).removeprefix("TOKENS"))


def _example() -> EventSample:
    """The card's example, written anew."""
    return EventSample(
        id="1", dataset="d", split="test", relation="causal", format="qa", question="Why was the road gone?",
        context="The dam broke at noon. By one the road was gone.", options=[], answers=["the dam broke"],
        refined_context=None,
    )  # fmt: skip


def _expected(run: Path) -> list[int]:
    """This package's answer to the example, which the run's own folder is loaded for."""
    loaded = load_model(str(run))
    model = loaded.model.eval()
    encoder = ViewEncoder(
        loaded.tokenizer, load_prompt_set("default"), ("original", "imagined"),
        encoder_decoder=model.config.is_encoder_decoder,
    )  # fmt: skip
    original, imagined = (encoder.prompt_ids(_example(), view) for view in ("original", "imagined"))
    stops, decoding = stop_token_ids(model, encoder.end_of_turn), DecodingConfig(alpha=0.5, max_new_tokens=12)
    [debiased] = generate_debiased(model, [original], [imagined], decoding, stop_ids=stops)
    assert debiased, "an answer of no token would show nothing"
    [plain] = generate_debiased(model, [original], decoding=replace(decoding, alpha=0), stop_ids=stops)
    assert debiased != plain
    return debiased


def _last(output: list[list[int]], expected: list[int]) -> list[int]:
    """The output's last tokens, as many as are expected; a stop token behind them left out."""
    ids = output[0]
    end = len(ids) - (ids[-1] == 1)
    return ids[end - len(expected) : end]


@pytest.mark.parametrize(
    ("kind", "load", "call"),
    [
        ("llama", "{0!r}, trust_remote_code=True", ""),
        ("qwen2", "{0!r}", ", custom_generate={0!r}, trust_remote_code=True"),
    ],
)
def test_a_padded_batch_gives_the_tokens_of_generate_debiased(tmp_path: Path, kind: str, load: str, call: str) -> None:
    run = make_run(tmp_path, kind)
    folder = tmp_path / "out"
    export(run, folder)
    originals, imagined = random_prompts(4, 8, 40, seed=1), random_prompts(4, 3, 12, seed=2)
    tensors = pairs(originals, imagined)
    inputs = json.dumps({name: tensor.tolist() for name, tensor in tensors.items()})
    program = _DECODE.format(
        load=load.format(str(folder)), call=call.format(str(folder)), inputs=inputs, alpha=0.9
    )  # fmt: skip
    printed = run_elsewhere(program + _SHOW, tmp_path / "elsewhere", **OFFLINE)
    ours = generate_debiased(
        load_model(str(run)).model.eval(), originals, imagined, DecodingConfig(alpha=0.9, max_new_tokens=12)
    )
    assert answers(torch.tensor(_tokens(printed)), tensors["input_ids"].shape[1], [1]) == ours


@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_the_cards_program_answers_as_this_package_does(tmp_path: Path, kind: str) -> None:
    run = make_run(tmp_path, kind)
    export(run, tmp_path / "out")
    printed = run_elsewhere(card_code(tmp_path / "out") + _SHOW, tmp_path / "elsewhere", **OFFLINE)
    expected = _expected(run)
    assert _last(_tokens(printed), expected) == expected


@pytest.mark.parametrize("merge", [True, False])
def test_an_adapter_decodes_debiased_merged_or_on_its_base(tmp_path: Path, merge: bool) -> None:
    run = make_run(tmp_path, lora=True)
    export(run, tmp_path / "out", ExportOptions(merge=merge))
    printed = run_elsewhere(card_code(tmp_path / "out") + _SHOW, tmp_path / "elsewhere", **OFFLINE)
    expected = _expected(run)
    assert _last(_tokens(printed), expected) == expected


def test_alpha_is_by_default_that_of_the_run(tmp_path: Path) -> None:
    export(make_run(tmp_path, "llama", "d2e.alpha=0.8"), tmp_path / "out")
    program = card_code(tmp_path / "out").replace("    alpha=0.8,\n", "")
    assert "alpha=" not in program
    other = program.replace("do_sample=False", "do_sample=False, alpha=0.0")
    programs = (card_code(tmp_path / "out"), program, other)
    printed = run_elsewhere("".join(text + _SHOW for text in programs), tmp_path / "elsewhere", **OFFLINE)
    given, default, plain = map(_tokens, re.findall("TOKENS.*", printed))
    assert default == given
    assert default != plain


def test_a_model_is_loaded_from_the_hub_by_its_name(hub: HubServer, tmp_path: Path) -> None:
    run = make_run(tmp_path)
    push(run, "team/tiny")
    (tmp_path / "README.md").write_bytes(hub.files["team/tiny"]["README.md"])
    program = card_code(tmp_path)
    assert 'NAME = "team/tiny"' in program
    environment = {"HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1"}
    printed = run_elsewhere(program + _SHOW, tmp_path / "elsewhere", **environment)
    expected = _expected(run)
    assert _last(_tokens(printed), expected) == expected


def test_this_package_is_out_of_reach_there(tmp_path: Path) -> None:
    program = "try:\n    import d2e_sft\nexcept ModuleNotFoundError:\n    print('TOKENS [1]')"
    assert _tokens(run_elsewhere(program, tmp_path / "elsewhere")) == [1]


@pytest.mark.parametrize(
    ("said", "original", "imagined"),
    [
        (
            {"prompt": "Policy: {context}\nCustomer: {question}", "system": "Be kind."},
            ["Be kind.", "Policy: P.\nCustomer: How long may I return the lamp?"],
            ["Be kind.", "Customer: How long may I return the lamp?"],
        ),
        (
            {"context_in": "<doc>"},
            ["<doc>P.</doc>\nHow long may I return the lamp?"],
            ["How long may I return the lamp?"],
        ),
        ({"context_in": "system"}, ["P.", "How long may I return the lamp?"], ["How long may I return the lamp?"]),
        (
            {"columns": {"context": "policy"}},
            ["P.\n\nHow long may I return the lamp?"],
            ["How long may I return the lamp?"],
        ),
    ],
)
def test_a_card_of_chat_data_words_its_example_as_the_data(
    said: dict[str, Any], original: list[str], imagined: list[str]
) -> None:
    conversation = example_conversation(said)
    assert [turn["content"] for turn in conversation.messages("P.")] == original
    assert [turn["content"] for turn in conversation.messages("")] == imagined
