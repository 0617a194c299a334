"""Near-duplicates against a comparison of all with all."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from data_builders.quality.overlap import near_pairs


def _naive(left: Sequence[tuple[str, ...]], right: Sequence[tuple[str, ...]], threshold: float) -> dict[Any, float]:
    """All pairs, by the definition: 3-grams where both texts are short (the longer one as far as it could reach)."""
    found = {}
    for i, one in enumerate(left):
        for j, other in enumerate(right):
            grams = []
            if len(one) >= 40 and len(other) >= 40:
                grams.append(5)
            if max(len(one), len(other)) < 40 / threshold:
                grams.append(3)
            for n in grams:
                a = {" ".join(one[k : k + n]) for k in range(len(one) - n + 1)}
                b = {" ".join(other[k : k + n]) for k in range(len(other) - n + 1)}
                if a and b and (similarity := len(a & b) / len(a | b)) >= threshold:
                    found[i, j] = max(similarity, found.get((i, j), 0))
    return found


@pytest.mark.parametrize("threshold", [0.5, 0.8, 1.0])
def test_near_pairs_are_those_of_a_comparison_of_all_with_all(threshold: float) -> None:
    random_ = random.Random(3)
    words = [f"w{n}" for n in range(60)]
    left = [tuple(random_.choices(words, k=random_.randint(1, 90))) for _ in range(120)]
    right = []
    for text in left:
        changed = list(text)
        for _ in range(random_.randint(0, 1 + len(text) // 15)):
            changed[random_.randrange(len(changed))] = random_.choice(words)
        right.append(tuple(changed[random_.randint(0, 2) :]))
    expected = _naive(left, right, threshold)
    assert len(expected) > 5
    assert near_pairs(left, right, threshold) == pytest.approx(expected)
