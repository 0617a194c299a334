"""Rows of a batch: what goes through the model, and when."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from d2e_sft.decoding import DecodingConfig, cache, generate, generate_debiased
from tests.d2e_sft.decoding.pairs import DECODING, PREFIX, generated, prefixed_case, random_prompts, watch_inputs
from tests.tiny import tiny_model


def test_the_prompts_of_an_encoder_are_encoded_once() -> None:
    model, encoded = tiny_model("t5", seed=1), []
    model.encoder.register_forward_pre_hook(
        lambda _, __, kwargs: encoded.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    generate_debiased(model, random_prompts(6, 8, 40, seed=1), random_prompts(6, 3, 12, seed=2), DECODING, stop_ids=[])
    assert encoded == [12]


@pytest.mark.parametrize("kind", ["llama", "mistral-window", "gemma3"])
def test_a_prefill_in_chunks_gives_the_same_answers(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, pairs, stops = prefixed_case(kind)
    whole = generated(model, pairs, DECODING, stop_ids=stops)
    monkeypatch.setattr(cache, "PREFILL_TOKENS", 20)
    assert generated(model, pairs, DECODING, stop_ids=stops) == whole


def test_bfloat16_weights_decode_without_leaving_bfloat16() -> None:
    model, pairs, _ = prefixed_case("llama")
    model = model.to(torch.bfloat16)
    kinds: set[torch.dtype] = set()
    model.model.layers[0].register_forward_hook(lambda _, __, output: kinds.add(output.dtype))
    answers = generated(model, pairs, DecodingConfig(max_new_tokens=4), stop_ids=[])
    assert kinds == {torch.bfloat16}
    assert [len(answer) for answer in answers] == [4] * 8


def test_the_models_attention_is_restored_even_if_nobody_takes_the_next_token() -> None:
    model, pairs, _ = prefixed_case("llama")
    model.set_attn_implementation("eager")
    outputs = generate(model, None, pairs, DECODING)
    next(outputs)
    assert model.config._attn_implementation != "eager"
    assert not torch.is_inference_mode_enabled()
    outputs.close()  # type: ignore[attr-defined]
    assert model.config._attn_implementation == "eager"


def test_an_imagined_prompt_of_several_samples_is_computed_once_but_for_its_last_token() -> None:
    model, pairs, _ = prefixed_case("llama")
    same = [replace(pair, imagined=[*PREFIX, *range(50, 90)]) for pair in pairs]
    shapes = watch_inputs(model)
    generated(model, same, DecodingConfig(max_new_tokens=1))
    own = sum(len(pair.original) - len(PREFIX) for pair in pairs)
    assert sum(tokens for _, tokens in shapes) == len(PREFIX) + own + 39 + 8
