"""Rows of a batch: packed rows share and leave as they should; an encoder-decoder's equal a loop without cache."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from d2e_sft.decoding import DecodingConfig, generate, generate_debiased, prefill, stream
from tests.d2e_sft.decoding.pairs import DECODING, PREFIX, prefixed_case, random_prompts, watch_inputs
from tests.tiny import tiny_model

ENCODED = DecodingConfig(alpha=0.5, max_new_tokens=10)


def _encoder_decoder() -> Any:
    # A decoder that uses its encoder: an ordinary tiny T5 repeats one token whatever its prompt.
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
    """One pair, one token at a time, both streams computed again for each."""
    answer: list[int] = []
    while len(answer) < ENCODED.max_new_tokens:
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


@pytest.mark.parametrize("alpha", [0.3, 0.9])
def test_an_encoder_decoder_gives_the_tokens_of_the_naive_loop_and_encodes_once(alpha: float) -> None:
    model = _encoder_decoder()
    originals, imagined = random_prompts(6, 8, 40, seed=1), random_prompts(6, 3, 12, seed=2)
    # A token that one answer holds early, so that pairs leave the batch at different steps.
    stops = [_naive(model, originals[1], imagined[1], alpha, [])[3]]
    expected = [_naive(model, o, i, alpha, stops) for o, i in zip(originals, imagined, strict=True)]
    encoded: list[int] = []
    model.encoder.register_forward_pre_hook(
        lambda _, __, kwargs: encoded.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    ours = generate_debiased(model, originals, imagined, replace(ENCODED, alpha=alpha), stop_ids=stops)
    assert encoded == [12]
    assert ours == expected
    assert len({len(answer) for answer in ours}) > 1, "the case needs pairs that finish at different steps"
    assert ours != generate_debiased(model, originals, decoding=replace(ENCODED, alpha=0), stop_ids=stops)


def test_alpha_zero_is_transformers_greedy_search() -> None:
    model = _encoder_decoder()
    originals = random_prompts(5, 5, 30, seed=5)
    ours = generate_debiased(model, originals, decoding=replace(ENCODED, alpha=0), stop_ids=[])
    for original, answer in zip(originals, ours, strict=True):
        ids = torch.tensor([original])
        plain = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=10, eos_token_id=None
        )
        assert answer == plain[0, 1:].tolist()
    assert len({tuple(answer) for answer in ours}) > 1


@pytest.mark.parametrize("kind", ["llama", "mistral-window", "gemma3"])
def test_a_prefill_in_chunks_gives_the_same_answers(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, pairs, stops = prefixed_case(kind)
    whole = generate(model, pairs, DECODING, stop_ids=stops)
    monkeypatch.setattr(prefill, "PREFILL_TOKENS", 20)
    assert generate(model, pairs, DECODING, stop_ids=stops) == whole


def test_bfloat16_weights_decode_without_leaving_bfloat16() -> None:
    model, pairs, _ = prefixed_case("llama")
    model = model.to(torch.bfloat16)
    kinds: set[torch.dtype] = set()
    model.model.layers[0].register_forward_hook(lambda _, __, output: kinds.add(output.dtype))
    answers = generate(model, pairs, DecodingConfig(max_new_tokens=4), stop_ids=[])
    assert kinds == {torch.bfloat16}
    assert [len(answer) for answer in answers] == [4] * 8


def test_the_models_attention_is_restored_even_if_nobody_takes_the_next_token() -> None:
    model, pairs, _ = prefixed_case("llama")
    model.set_attn_implementation("eager")
    tokens = stream(model, pairs, DECODING)
    next(tokens)
    assert model.config._attn_implementation != "eager"
    assert not torch.is_inference_mode_enabled()
    tokens.close()  # type: ignore[attr-defined]
    assert model.config._attn_implementation == "eager"


def test_an_imagined_prompt_of_several_samples_is_computed_once_but_for_its_last_token() -> None:
    model, pairs, _ = prefixed_case("llama")
    same = [replace(pair, imagined=[*PREFIX, *range(50, 90)]) for pair in pairs]
    shapes = watch_inputs(model)
    generate(model, same, DecodingConfig(max_new_tokens=1))
    own = sum(len(pair.original) - len(PREFIX) for pair in pairs)
    assert sum(tokens for _, tokens in shapes) == len(PREFIX) + own + 39 + 8
