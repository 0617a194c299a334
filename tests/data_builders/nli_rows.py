"""Rows for the tests of statistics and overlap."""

from typing import Any

from d2e_sft.data.sample import EventSample
from tests.tiny import make_sample

PASSAGE = "The river rose in spring, so the farmers moved their sheep to the upper fields before the bridge closed."


def own_row(split: str, number: int = 1, **changes: Any) -> EventSample:
    """Make a sample that shares nothing with one of the other split or another number."""
    fields = {
        "id": f"own-{split}-{number}",
        "dataset": "own",
        "split": split,
        "context": f"In {split} story number {number} somebody built a wall of stone.",
        "refined_context": None,
        "question": f"Why was wall number {number} of {split} built so quickly?",
        "answers": ["to keep the wind out"],
    }
    return make_sample(number, **{**fields, **changes})


def nli(number: int, context: str, hypothesis: str, label: str, **changes: Any) -> EventSample:
    fields: dict[str, Any] = {"context": context, "question": hypothesis, "answers": [label], "format": "nli"}
    return own_row("test", number, **{"id": str(number), "relation": "causal", **fields, **changes})
