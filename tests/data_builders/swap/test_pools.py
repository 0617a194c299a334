"""A row takes one of its own choices if they have the form of its answer; the pools are asked in the given order."""

from __future__ import annotations

import random

import pytest

from d2e_sft.data.sample import EventSample
from data_builders.swap.candidates import SwapOptions
from data_builders.swap.revise import Refusal
from data_builders.swap.swap import swap_samples


def _row(context: str, question: str, answer: str, *choices: str, fmt: str = "qa") -> EventSample:
    return EventSample(
        id="hand",
        dataset="hand",
        split="train",
        relation="factual",
        format=fmt,
        context=context,
        question=question,
        answers=[answer],
        options=[answer, *choices] if fmt == "scq" else [],
        meta={"choices": list(choices)} if choices and fmt == "qa" else {},
    )


@pytest.mark.parametrize("fmt", ["qa", "scq"])
@pytest.mark.parametrize(
    ("context", "answer", "choices", "changed", "other"),
    [
        # A list of options writes everything with a capital; the context does not.
        ("It guards against disease.", "disease", ["Injury"], "It guards against injury.", "injury"),
        ("Inertia, the law of inertia.", "Inertia", ["Friction"], "Friction, the law of friction.", "friction"),
        ("The House of Lords met.", "The House", ["At Noon", "The Court"], "The Court of Lords met.", "The Court"),
        # A choice of another form is left out: a clause, another number, another unit.
        ("He rushed home.", "rushed home", ["because it rained", "walked back"], "He walked back.", "walked back"),
        ("It took 28 days.", "28 days", ["Five", "30 hours", "20 days"], "It took 20 days.", "20 days"),
    ],
)
def test_a_choice_of_the_same_form_is_taken_and_written_as_the_context_writes(
    context: str, answer: str, choices: list[str], changed: str, other: str, fmt: str
) -> None:
    row = _row(context, "What was it?", answer, *choices, fmt=fmt)
    (new,), swaps = swap_samples([row], 1.0, random.Random(0), SwapOptions())
    assert new.context == changed
    assert new.answers[0].casefold() == other.casefold()
    assert new.answers[0] in (new.options or new.answers)
    assert new.meta["swapped"]["pool"] == "options"
    assert swaps.describe()["pools"] == {"options": 1}


@pytest.mark.parametrize(
    ("order", "pools"),
    [
        ("lists,dataset", ["lists", "lists"]),
        ("dataset, lists", ["dataset", "dataset"]),
        ("lists,options", ["options", "lists"]),  # a row with choices takes one of them
        ("options", ["options", None]),
    ],
)
def test_the_pools_are_asked_in_the_given_order(order: str, pools: list[str | None]) -> None:
    rows = [_row("It was in 1990.", "When was it?", "1990", "1985"), _row("It was in 1991.", "When was it?", "1991")]
    done, swaps = swap_samples(rows, 1.0, random.Random(0), SwapOptions.model_validate({"pools": order}))
    assert [row.meta.get("swapped", {}).get("pool") for row in done] == pools
    assert swaps.refused == ({Refusal.NO_OTHER: 1} if None in pools else {})
