"""Rows of a batch: packed ones share and leave as they should, an encoder-decoder's equal a loop without cache."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from d2e_sft.decoding import DecodingConfig, decode_prompts, generate_debiased, rows
from tests.d2e_sft.decoding.pairs import (
    KINDS,
    NEW_TOKENS,
    PREFIX,
    decoded_alone,
    prefixed_case,
)
from tests.tiny import VOCAB_SIZE, tiny_model

ENCODED_TOKENS = 10


def encoder_prompts(count: int, low: int, high: int, seed: int) -> list[list[int]]:
    generator = random.Random(seed)
    lengths = [generator.randint(low, high) for _ in range(count)]
    return [[generator.randrange(5, VOCAB_SIZE) for _ in range(length)] for length in lengths]


def _encoder_decoder() -> Any:
    # A decoder that listens to its encoder: a tiny T5 of the usual kind repeats one token, whatever it reads.
    model = tiny_model("t5", seed=1)
    torch.manual_seed(2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 1.0 if "shared" in name else parameter.shape[-1] ** -0.5)
            if "EncDecAttention" in name:
                parameter.mul_(3)
    return model


@torch.no_grad()
def _naive(model: Any, original: list[int], imagined: list[int], alpha: float, stops: list[int]) -> list[int]:
    """One pair, one token at a time, both streams computed anew for each."""
    answer: list[int] = []
    while len(answer) < ENCODED_TOKENS:
        decoder = torch.tensor([[0, *answer]])
        z_original, z_imagined = (
            model(input_ids=torch.tensor([prompt]), decoder_input_ids=decoder, use_cache=False).logits[0, -1]
            for prompt in (original, imagined)
        )
        token = int((z_original - alpha * z_imagined).argmax())
        if token in stops:
            break
        answer.append(token)
    return answer


@pytest.mark.parametrize("alpha", [0.3, 0.5, 0.9])
def test_a_batch_gives_the_tokens_of_the_naive_loop(alpha: float) -> None:
    model = _encoder_decoder()
    originals, imagined = encoder_prompts(6, 8, 40, seed=1), encoder_prompts(6, 3, 12, seed=2)
    # A token that one answer holds early, so that pairs leave the batch at different steps.
    stops = [_naive(model, originals[1], imagined[1], alpha, [])[3]]
    ours = generate_debiased(
        model, originals, imagined, DecodingConfig(alpha=alpha, max_new_tokens=ENCODED_TOKENS), stop_ids=stops
    )
    assert ours == [_naive(model, o, i, alpha, stops) for o, i in zip(originals, imagined, strict=True)]
    assert len({len(answer) for answer in ours}) > 1, "the case needs pairs that finish at different steps"
    assert ours != generate_debiased(
        model, originals, decoding=DecodingConfig(alpha=0, max_new_tokens=ENCODED_TOKENS), stop_ids=stops
    )


def test_alpha_zero_is_transformers_greedy_search() -> None:
    model = _encoder_decoder()
    originals = encoder_prompts(5, 5, 30, seed=5)
    ours = generate_debiased(
        model, originals, decoding=DecodingConfig(alpha=0, max_new_tokens=ENCODED_TOKENS), stop_ids=[]
    )
    for original, answer in zip(originals, ours, strict=True):
        ids = torch.tensor([original])
        plain = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=ENCODED_TOKENS, eos_token_id=None
        )
        assert answer == plain[0, 1:].tolist()
    assert len({tuple(answer) for answer in ours}) > 1


def test_the_encoder_runs_once() -> None:
    model = _encoder_decoder()
    rows: list[int] = []
    model.encoder.register_forward_pre_hook(
        lambda _, __, kwargs: rows.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    originals, imagined = encoder_prompts(3, 8, 20, seed=1), encoder_prompts(3, 3, 12, seed=2)
    generate_debiased(model, originals, imagined, DecodingConfig(max_new_tokens=ENCODED_TOKENS), stop_ids=[])
    assert rows == [6]


@pytest.mark.parametrize("kind", ["llama", "mistral-window", "gemma3"])
def test_a_prefill_in_parts_gives_the_same_answers(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, originals, imagined, stops = prefixed_case(kind)
    options: dict[str, Any] = {"decoding": DecodingConfig(max_new_tokens=NEW_TOKENS), "stop_ids": stops}
    whole = decode_prompts(model, originals, imagined, **options)
    monkeypatch.setattr(rows, "PREFILL_TOKENS", 20)
    assert decode_prompts(model, originals, imagined, **options) == whole


def test_bfloat16_weights_decode_without_leaving_bfloat16() -> None:
    model, originals, imagined, _ = prefixed_case("llama")
    model = model.to(torch.bfloat16)
    kinds: set[torch.dtype] = set()
    model.model.layers[0].register_forward_hook(lambda _, __, output: kinds.add(output.dtype))
    answers = generate_debiased(model, originals, imagined, DecodingConfig(max_new_tokens=4), stop_ids=[])
    assert kinds == {torch.bfloat16}
    assert [len(answer) for answer in answers] == [4] * 8


def test_the_models_attention_is_as_it_was_afterwards_even_if_decoding_fails() -> None:
    model, originals, imagined, _ = prefixed_case("llama")
    model.set_attn_implementation("eager")

    def breaks(index: int, token: int) -> None:
        raise RuntimeError("the reader left")

    with pytest.raises(RuntimeError, match="the reader left"):
        generate_debiased(model, originals, imagined, on_token=breaks)
    assert model.config._attn_implementation == "eager"


def test_an_imagined_prompt_that_several_samples_have_is_computed_once_but_for_its_last_token() -> None:
    model, originals, _, _ = prefixed_case("llama")
    same = [[*PREFIX, *range(50, 90)]] * 8
    generate_debiased(model, originals[:1], decoding=DecodingConfig(alpha=0, max_new_tokens=1))
    tokens: list[int] = []
    model.model.register_forward_pre_hook(
        lambda _, __, kwargs: tokens.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    generate_debiased(model, originals, same, DecodingConfig(max_new_tokens=1))
    assert sum(tokens) == len(PREFIX) + sum(len(o) - len(PREFIX) for o in originals) + 39 + 8


@pytest.mark.parametrize("kind", KINDS)
def test_pairs_that_finish_leave_the_batch_without_changing_the_others(kind: str) -> None:
    model, originals, imagined, stops = prefixed_case(kind)
    whole = generate_debiased(model, originals, imagined, DecodingConfig(max_new_tokens=NEW_TOKENS), stop_ids=stops)
    assert whole == decoded_alone(model, originals, imagined, stop_ids=stops)
    assert len({len(answer) for answer in whole}) > 2, "the case needs pairs that finish at different steps"
