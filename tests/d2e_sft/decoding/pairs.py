"""Random prompts in pairs, some of whose answers end early."""

from __future__ import annotations

import random
from typing import Any

from d2e_sft.decoding import DecodingConfig, generate_debiased
from tests.tiny import VOCAB_SIZE


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
