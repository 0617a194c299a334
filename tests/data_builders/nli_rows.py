"""Rows of one format, for the tests of statistics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from d2e_sft.data.sample import EventSample
from data_builders.dataset.sample_sets import read_set
from data_builders.quality.stats import Stats, compute_stats


def nli(number: int, context: str, hypothesis: str, label: str, **changes: Any) -> EventSample:
    row = {
        "id": str(number),
        "dataset": "own",
        "split": "test",
        "relation": "causal",
        "format": "nli",
        "context": context,
        "question": hypothesis,
        "answers": [label],
    }
    return EventSample.model_validate(row | changes)


def stats_in_words(path: Path) -> Stats:
    """Statistics of a set, lengths in words."""
    return compute_stats([read_set(path)], tokenizer="words")
