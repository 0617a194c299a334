"""Models with weights in oneDNN's order compute what they computed before."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from d2e_sft.decoding import DecodingConfig, generate_debiased
from d2e_sft.model.onednn import ReorderedLinear, ready_to_decode
from tests.d2e_sft.decoding.pairs import DECODING, generated, prefixed_case, random_prompts
from tests.tiny import tiny_model


@pytest.mark.parametrize("kind", ["llama", "qwen2", "phi", "gemma2", "bloom", "t5"])
def test_a_reordered_model_gives_the_same_logits_and_answers(kind: str) -> None:
    model = tiny_model(kind, seed=1)
    reordered = ready_to_decode(copy.deepcopy(model), "cpu")
    assert any(isinstance(module, ReorderedLinear) for module in reordered.modules())
    assert not any(type(module) is nn.Linear for module in reordered.modules())
    prompts = random_prompts(5, 8, 40, seed=1), random_prompts(5, 3, 9, seed=2)
    answers = [generate_debiased(one.eval(), *prompts, DECODING, stop_ids=[]) for one in (model, reordered)]
    assert answers[0] == answers[1]
    ids = torch.tensor([prompts[0][0]])
    inputs = {"input_ids": ids, **({"decoder_input_ids": ids[:, :4]} if kind == "t5" else {})}
    with torch.inference_mode():
        torch.testing.assert_close(reordered(**inputs).logits, model(**inputs).logits, rtol=1e-4, atol=1e-5)


def test_other_dtypes_keep_their_layers() -> None:
    model, pairs, _ = prefixed_case("llama")
    model = ready_to_decode(model.to(torch.bfloat16), "cpu")
    assert not any(isinstance(module, ReorderedLinear) for module in model.modules())
    assert all(generated(model, pairs, DecodingConfig(max_new_tokens=2), stop_ids=[]))
