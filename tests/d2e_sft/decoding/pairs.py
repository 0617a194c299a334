"""Random prompts in pairs, some of whose answers end early."""

from __future__ import annotations

import random
from typing import Any

from d2e_sft.decoding import DecodingConfig, generate_debiased
from tests.tiny import VOCAB_SIZE, tiny_model

NEW_TOKENS = 12
PREFIX = list(range(10, 40))
KINDS = ["llama", "mistral-window", "gemma3", "gpt2"]


def random_prompts(count: int, low: int, high: int, seed: int, prefix: list[int] | None = None) -> list[list[int]]:
    """Prompts of `low` to `high` random tokens behind what all begin with."""
    generator = random.Random(seed)
    return [
        [*(prefix or []), *(generator.randrange(5, VOCAB_SIZE) for _ in range(generator.randint(low, high)))]
        for _ in range(count)
    ]


def frequent_token(model: Any, originals: list[list[int]], imagined: list[list[int]], new_tokens: int) -> int:
    """A token that some answers hold early and some do not, so that pairs finish at different steps."""
    return generate_debiased(model, originals, imagined, DecodingConfig(max_new_tokens=new_tokens), stop_ids=[])[0][3]


def prefixed_case(kind: str, count: int = 8) -> tuple[Any, list[list[int]], list[list[int]], list[int]]:
    """Pairs behind a common prefix, of very different lengths; two have the same imagined prompt."""
    model = tiny_model(kind, seed=1)
    originals = random_prompts(count, 5, 60, seed=3, prefix=PREFIX)
    imagined = random_prompts(count, 3, 9, seed=4, prefix=PREFIX)
    imagined[1] = list(imagined[4])
    return model, originals, imagined, [frequent_token(model, originals, imagined, NEW_TOKENS)]


def decoded_alone(model: Any, originals: Any, imagined: Any, **options: Any) -> list[list[int]]:
    alphas = options.pop("alpha", [0.5] * len(originals))
    return [
        generate_debiased(model, [o], [i], DecodingConfig(alpha=alpha, max_new_tokens=NEW_TOKENS), **options)[0]
        for o, i, alpha in zip(originals, imagined, alphas, strict=True)
    ]
