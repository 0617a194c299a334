"""Debiased decoding of encoder-decoder models against a loop without cache, and transformers' greedy search."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from d2e_sft.decoding import DecodingConfig, generate_debiased
from tests.tiny import VOCAB_SIZE, tiny_model

NEW_TOKENS = 10


def _prompts(count: int, low: int, high: int, seed: int) -> list[list[int]]:
    generator = random.Random(seed)
    lengths = [generator.randint(low, high) for _ in range(count)]
    return [[generator.randrange(5, VOCAB_SIZE) for _ in range(length)] for length in lengths]


def _model() -> Any:
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
    while len(answer) < NEW_TOKENS:
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
    model = _model()
    originals, imagined = _prompts(6, 8, 40, seed=1), _prompts(6, 3, 12, seed=2)
    # A token that one answer holds early, so that pairs leave the batch at different steps.
    stops = [_naive(model, originals[1], imagined[1], alpha, [])[3]]
    ours = generate_debiased(
        model, originals, imagined, DecodingConfig(alpha=alpha, max_new_tokens=NEW_TOKENS), stop_ids=stops
    )
    assert ours == [_naive(model, o, i, alpha, stops) for o, i in zip(originals, imagined, strict=True)]
    assert len({len(answer) for answer in ours}) > 1, "the case needs pairs that finish at different steps"
    assert ours != generate_debiased(
        model, originals, decoding=DecodingConfig(alpha=0, max_new_tokens=NEW_TOKENS), stop_ids=stops
    )


def test_alpha_zero_is_transformers_greedy_search() -> None:
    model = _model()
    originals = _prompts(5, 5, 30, seed=5)
    ours = generate_debiased(
        model, originals, decoding=DecodingConfig(alpha=0, max_new_tokens=NEW_TOKENS), stop_ids=[]
    )
    for original, answer in zip(originals, ours, strict=True):
        ids = torch.tensor([original])
        plain = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=NEW_TOKENS, eos_token_id=None
        )
        assert answer == plain[0, 1:].tolist()
    assert len({tuple(answer) for answer in ours}) > 1


def test_the_encoder_runs_once() -> None:
    model = _model()
    rows: list[int] = []
    model.encoder.register_forward_pre_hook(
        lambda _, __, kwargs: rows.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    originals, imagined = _prompts(3, 8, 20, seed=1), _prompts(3, 3, 12, seed=2)
    generate_debiased(model, originals, imagined, DecodingConfig(alpha=0.5, max_new_tokens=NEW_TOKENS), stop_ids=[])
    assert rows == [6]
