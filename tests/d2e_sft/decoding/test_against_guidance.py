"""Two-stream decoding against transformers' classifier-free guidance and its plain generation."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from d2e_sft.decoding import DecodingConfig, generate_debiased
from tests.d2e_sft.decoding.pairs import frequent_token, random_prompts
from tests.tiny import tiny_model

NEW_TOKENS = 12


def _guided(model: Any, original: list[int], imagined: list[int], alpha: float, stops: list[int]) -> list[int]:
    """transformers' own guidance, one pair at a time; scale 1/(1−α) has the same argmax (DESIGN fact 5)."""
    output = model.generate(
        input_ids=torch.tensor([original]),
        negative_prompt_ids=torch.tensor([imagined]),
        negative_prompt_attention_mask=torch.ones(1, len(imagined), dtype=torch.long),
        attention_mask=torch.ones(1, len(original), dtype=torch.long),
        guidance_scale=1 / (1 - alpha),
        do_sample=False,
        max_new_tokens=NEW_TOKENS,
        eos_token_id=stops,
        pad_token_id=0,
    )[0, len(original) :].tolist()
    return output[:-1] if output and output[-1] in stops else output


@pytest.mark.parametrize("alpha", [0.3, 0.5, 0.9])
@pytest.mark.parametrize(
    "kind", ["llama", "qwen3", "mistral", "mistral-window", "gemma2", "gemma3", "granite", "phi", "gpt2", "bloom"]
)
def test_a_batch_gives_the_tokens_of_transformers_guidance_one_at_a_time(kind: str, alpha: float) -> None:
    model = tiny_model(kind, seed=1)
    originals, imagined = random_prompts(6, 8, 40, seed=1), random_prompts(6, 3, 12, seed=2)
    stops = [frequent_token(model, originals, imagined, NEW_TOKENS)]
    ours = generate_debiased(
        model, originals, imagined, DecodingConfig(alpha=alpha, max_new_tokens=NEW_TOKENS), stop_ids=stops
    )
    theirs = [_guided(model, o, i, alpha, stops) for o, i in zip(originals, imagined, strict=True)]
    assert ours == theirs
    assert len({tuple(answer) for answer in ours}) > 1


def test_alpha_zero_is_plain_greedy_decoding_with_one_stream() -> None:
    model = tiny_model(seed=1)
    originals = random_prompts(4, 5, 30, seed=5)
    generate_debiased(
        model, originals, decoding=DecodingConfig(alpha=0, max_new_tokens=1), stop_ids=[]
    )  # asks the model what it can do
    shapes: list[tuple[int, ...]] = []
    model.model.register_forward_pre_hook(
        lambda _, __, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    ours = generate_debiased(
        model, originals, decoding=DecodingConfig(alpha=0, max_new_tokens=NEW_TOKENS), stop_ids=[]
    )
    assert shapes[0] == (1, sum(len(prompt) for prompt in originals))
    assert shapes[1:] == [(4, 1)] * (NEW_TOKENS - 1)
    for original, answer in zip(originals, ours, strict=True):
        plain = model.generate(
            torch.tensor([original]), do_sample=False, max_new_tokens=NEW_TOKENS, eos_token_id=None, pad_token_id=0
        )
        assert answer == plain[0, len(original) :].tolist()


def test_a_pair_without_context_is_decoded_plainly_even_at_alpha_one_and_more() -> None:
    model = tiny_model(seed=1)
    prompt = random_prompts(1, 10, 10, seed=8)
    plain = generate_debiased(model, prompt, decoding=DecodingConfig(alpha=0, max_new_tokens=6), stop_ids=[])
    assert generate_debiased(model, prompt, prompt, DecodingConfig(alpha=1.5, max_new_tokens=6), stop_ids=[]) == plain


def test_debiasing_without_imagined_prompts_is_refused() -> None:
    with pytest.raises(ValueError, match="needs one imagined prompt"):
        generate_debiased(tiny_model(), [[5, 6]], decoding=DecodingConfig(alpha=0.5), stop_ids=[])
