"""A classifier that sees where the hypothesis' words stand tells by the order of events, and by nothing else."""

from __future__ import annotations

import random

from d2e_sft.data.sample import EventSample
from data_builders.quality.word_places import accuracy_by_places
from tests.data_builders.nli_rows import nli

FILLER = "They walked on and said little while the day went by."


def _ordered(seed: int = 2) -> list[EventSample]:
    """400 stories in which it rains early or late; the hypothesis says that it rained early."""
    random_ = random.Random(seed)
    rows = []
    for number in range(400):
        early = random_.random() < 0.5
        parts = [f"Story {number}. It rained.", FILLER, FILLER]
        context = " ".join(parts if early else [f"Story {number}.", FILLER, FILLER, "It rained."])
        rows.append(nli(number, context, "It rained at the beginning.", "positive" if early else "negative"))
    return rows


def test_it_tells_by_the_place_of_a_word() -> None:
    rows = _ordered()
    assert accuracy_by_places(rows, [row.context for row in rows]) == 1.0


def test_without_the_sentence_that_decides_it_guesses() -> None:
    rows = _ordered()
    cut = accuracy_by_places(rows, [FILLER] * len(rows))
    assert cut is not None
    assert 0.4 < cut < 0.6


def test_too_few_rows_give_no_accuracy() -> None:
    assert accuracy_by_places(_ordered()[:12], [FILLER] * 12) is None
