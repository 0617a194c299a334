"""Two-stream decoding against transformers' classifier-free guidance, and against itself in other batches."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from d2e_sft.decoding import decode_prompts, generate_debiased, stop_token_ids
from tests.tiny import VOCAB_SIZE, tiny_model

NEW_TOKENS = 12


def _prompts(count: int, low: int, high: int, seed: int) -> list[list[int]]:
    generator = random.Random(seed)
    return [[generator.randrange(5, VOCAB_SIZE) for _ in range(generator.randint(low, high))] for _ in range(count)]


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


def _frequent_token(model: Any, prompts: list[list[int]], imagined: list[list[int]]) -> int:
    """A token that some answers hold early and some do not, so that pairs finish at different steps."""
    answers = generate_debiased(model, prompts, imagined, max_new_tokens=NEW_TOKENS, stop_ids=[])
    return answers[0][3]


@pytest.mark.parametrize("alpha", [0.3, 0.5, 0.9])
@pytest.mark.parametrize("kind", ["llama", "qwen3", "mistral", "gpt2"])
def test_a_batch_gives_the_tokens_of_transformers_guidance_one_at_a_time(kind: str, alpha: float) -> None:
    model = tiny_model(kind, seed=1)
    originals, imagined = _prompts(6, 8, 40, seed=1), _prompts(6, 3, 12, seed=2)
    stops = [_frequent_token(model, originals, imagined)]
    ours = generate_debiased(model, originals, imagined, alpha=alpha, max_new_tokens=NEW_TOKENS, stop_ids=stops)
    theirs = [_guided(model, o, i, alpha, stops) for o, i in zip(originals, imagined, strict=True)]
    assert ours == theirs
    assert len({tuple(answer) for answer in ours}) > 1


def test_pairs_that_finish_leave_the_batch_without_changing_the_others() -> None:
    model = tiny_model(seed=1)
    originals, imagined = _prompts(8, 5, 30, seed=3), _prompts(8, 3, 9, seed=4)
    stops = [_frequent_token(model, originals, imagined)]
    whole = generate_debiased(model, originals, imagined, max_new_tokens=NEW_TOKENS, stop_ids=stops)
    alone = [
        generate_debiased(model, [o], [i], max_new_tokens=NEW_TOKENS, stop_ids=stops)[0]
        for o, i in zip(originals, imagined, strict=True)
    ]
    assert whole == alone
    assert len({len(answer) for answer in whole}) > 1, "the case needs pairs that finish at different steps"


def test_alpha_zero_is_plain_greedy_decoding_with_one_stream() -> None:
    model = tiny_model(seed=1)
    originals = _prompts(4, 5, 30, seed=5)
    rows: list[int] = []
    model.register_forward_pre_hook(lambda _, __, kwargs: rows.append(len(kwargs["input_ids"])), with_kwargs=True)
    ours = generate_debiased(model, originals, alpha=0, max_new_tokens=NEW_TOKENS, stop_ids=[])
    assert set(rows) == {4}
    for original, answer in zip(originals, ours, strict=True):
        plain = model.generate(
            torch.tensor([original]), do_sample=False, max_new_tokens=NEW_TOKENS, eos_token_id=None, pad_token_id=0
        )
        assert answer == plain[0, len(original) :].tolist()


def test_results_keep_the_order_of_the_prompts_whatever_the_batch_size() -> None:
    model = tiny_model(seed=1)
    originals, imagined = _prompts(7, 5, 30, seed=6), _prompts(7, 3, 9, seed=7)
    seen: list[int] = []
    options: dict[str, Any] = {"alpha": 0.5, "max_new_tokens": 6, "stop_ids": []}
    by_one = decode_prompts(model, originals, imagined, batch_size=1, **options)
    by_three = decode_prompts(
        model, originals, imagined, batch_size=3, on_batch=lambda indices, _: seen.extend(indices), **options
    )
    assert by_one == by_three
    assert sorted(seen) == list(range(7))


def test_a_pair_without_context_is_decoded_plainly_even_at_alpha_one_and_more() -> None:
    model = tiny_model(seed=1)
    prompt = _prompts(1, 10, 10, seed=8)
    plain = generate_debiased(model, prompt, alpha=0, max_new_tokens=6, stop_ids=[])
    assert generate_debiased(model, prompt, prompt, alpha=1.5, max_new_tokens=6, stop_ids=[]) == plain


def test_debiasing_without_imagined_prompts_is_refused() -> None:
    with pytest.raises(ValueError, match="needs one imagined prompt"):
        generate_debiased(tiny_model(), [[5, 6]], alpha=0.5, stop_ids=[])


def test_stop_tokens_are_the_end_of_turn_and_the_models_own() -> None:
    model = tiny_model()
    model.generation_config.eos_token_id = [7, 1]
    assert stop_token_ids(model, end_of_turn=3) == [1, 3, 7]
