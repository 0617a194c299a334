"""Habits of training rows: what most of them answer is the habit of test rows and of their swapped twins."""

from __future__ import annotations

import random
from typing import Any

import pytest

from d2e_sft.data.sample import EventSample
from data_builders.swap.candidates import SwapOptions
from data_builders.swap.swap import Habits, Swaps, _subset_by, with_twins

KEY, BOX = "Where is the key?", "Where is box {n}?"


def _row(question: str, answer: str, *, context: str = "", **other: Any) -> EventSample:
    fields = {"id": "1", "dataset": "mine", "split": "test", "relation": "none", "format": "qa"}
    text = context or f"It is in {answer}."
    return EventSample.model_validate({**fields, "context": text, "question": question, "answers": [answer], **other})


def _rows(question: str, *answers: tuple[int, str]) -> list[EventSample]:
    """So many rows of each answer; `{n}` in the question is their number."""
    every = [answer for count, answer in answers for _ in range(count)]
    return [_row(question.format(n=n), answer) for n, answer in enumerate(every)]


def _habit(question: str, *train: EventSample, **other: Any) -> list[str]:
    return Habits(train).of(_row(question, "Rome", **other))


@pytest.mark.parametrize(
    ("train", "asked", "habit"),
    [
        (_rows(KEY, (11, "the barn"), (9, "the shop")), KEY, ["the barn"]),
        (_rows(KEY, (11, "the barn"), (9, "the shop")), "where is key", ["the barn"]),
        (_rows(KEY, (10, "the barn"), (10, "the shop")), KEY, []),  # a half is not more than a half
        (_rows(KEY, (19, "the barn")), KEY, []),  # too few
        (_rows(KEY, (6, "The barn."), (5, "barn"), (9, "the shop")), KEY, ["The barn."]),  # one answer to the scorers
        # The same question but for names and numbers.
        (_rows(BOX, (15, "the barn"), (5, "the shop")), BOX.format(n=99), ["the barn"]),
        ([*_rows("Who led Team {n}?", (20, "Ann")), *_rows("Who left?", (30, "Bo"))], "Who led Real Madrid?", ["Ann"]),
        (_rows("Why did {n} burn?", (20, "oil")), "Why did {n} sink?", []),
        # A question that asks for the same: where.
        (_rows(BOX, (15, "the barn"), (5, "the shop")), "Where are the nails?", ["the barn"]),
        (_rows(BOX, (15, "the barn"), (5, "the shop")), "Who has box 3?", []),
        # The narrower question decides: by its own majority, by the lack of one, or against the wider one's.
        ([*_rows(KEY, (15, "the shop"), (5, "Rome")), *_rows(BOX, (60, "the barn"))], KEY, ["the shop"]),
        ([*_rows(KEY, (9, "the shop"), (11, "Rome")), *_rows(BOX, (60, "the barn"))], KEY, ["Rome"]),
        ([*_rows(KEY, (10, "the shop"), (10, "the barn")), *_rows(BOX, (60, "the barn"))], KEY, []),
        ([*_rows(KEY, (3, "the shop"), (1, "the barn")), *_rows(BOX, (60, "the barn"))], KEY, []),
        ([*_rows(KEY, (1, "the shop"), (3, "the barn")), *_rows(BOX, (60, "the barn"))], KEY, ["the barn"]),
        # A swapped row counts with the answer that it had.
        ([_row(KEY, "x", meta={"swapped": {"from": "the barn", "to": "x"}})] * 20, KEY, ["the barn"]),
    ],
)  # fmt: skip
def test_the_habit_is_the_answer_of_most_rows_of_the_narrowest_question_with_enough(
    train: list[EventSample], asked: str, habit: list[str]
) -> None:
    assert _habit(asked, *train) == habit


@pytest.mark.parametrize(("options", "habit"), [(["Rome", "barn"], ["barn"]), (["Rome", "Oslo"], [])])
def test_the_habit_of_a_row_with_options_is_one_of_them(options: list[str], habit: list[str]) -> None:
    choice: dict[str, Any] = {"format": "scq", "options": ["Rome", "barn"]}
    train = [_row(KEY, "barn", **choice)] * 20
    assert _habit(KEY, *train, **{**choice, "options": options}) == habit


def _twins(*rows: EventSample, train: list[EventSample]) -> tuple[list[EventSample], Swaps]:
    options = SwapOptions.model_validate({"pools": "dataset"})
    return with_twins(rows, 1.0, random.Random(0), options, train, train=train)


USUAL = _rows(KEY, (16, "the barn"), (2, "the shop"), (2, "the cold store"))


@pytest.mark.parametrize(
    ("answer", "subset"), [("the barn", "aligned"), ("the shop", "conflict"), ("the red barn", "unknown")]
)
def test_row_and_twin_are_tagged_by_the_habit_which_is_never_the_twins_answer(answer: str, subset: str) -> None:
    for _ in range(20):
        (row, twin), swaps = _twins(_row(KEY, answer), train=USUAL)
        assert (row.subset, row.habit, row.answers) == (subset, ["the barn"], [answer])
        assert (twin.subset, twin.habit) == ("conflict", ["the barn"])
        assert twin.answers[0] in {"the shop", "the cold store"} - {answer}
        assert twin.context == f"It is in {twin.answers[0]}."
        assert swaps.describe()["habits"] == {"the barn": 1}


def test_a_habit_of_its_own_and_missing_evidence_leave_the_training_rows_aside() -> None:
    own = _row(KEY, "the shop", habit=["the attic"])
    (row, twin), swaps = _twins(own, train=USUAL)
    assert (row.subset, row.habit, twin.habit, twin.subset) == ("conflict", ["the attic"], ["the attic"], "conflict")
    assert "habits" not in swaps.describe()
    (row, twin), swaps = _twins(_row(KEY, "the shop"), train=USUAL[5:])
    assert (row.subset, row.habit, twin.habit, twin.subset) == ("aligned", ["the shop"], ["the shop"], "conflict")
    assert "habits" not in swaps.describe()
    (row,), _ = _twins(_row(KEY, "the shop", context="Look there."), train=USUAL)  # cannot be swapped
    assert (row.subset, row.habit) == (None, [])


@pytest.mark.parametrize(
    ("row", "habit", "subset"),
    [
        ({"format": "scq", "options": ["-5", "5"]}, "-5", "conflict"),
        ({"format": "scq", "options": ["-5", "5"]}, "5", "aligned"),
        ({}, "-5", "unknown"),  # exact match of free text cannot tell them apart
        ({}, "The 5.", "aligned"),
    ],
)
def test_a_habit_that_differs_in_a_sign_is_not_the_answer(row: dict[str, Any], habit: str, subset: str) -> None:
    assert _subset_by([habit], _row(KEY, "5", **row)) == subset


def test_answers_that_differ_in_a_sign_are_counted_apart() -> None:
    assert _habit(KEY, *_rows(KEY, (8, "-5"), (7, "5"), (5, "6"))) == []
