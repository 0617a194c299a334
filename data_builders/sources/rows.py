"""What several sources do with their rows: join labels to them, keep each once, leave out those of the test."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, TypeVar

from d2e_sft.util.errors import UserError
from data_builders.raw.reader import Draft, RawInput
from data_builders.raw.row import BadRowError, Row, clean, one_of
from data_builders.raw.source import SplitRows, github

T = TypeVar("T")
# TimeBench has parts of the tests of several datasets.
TIMEBENCH_FILES = github("zchuz/TimeBench", "e7fd6722fd0b3814dc595912749223d45e42fab9")
_LABEL = "label"


def first_of_each(rows: Iterable[T], key: Callable[[T], Hashable]) -> list[T]:
    """The first row of each key, in order."""
    first: dict[Hashable, T] = {}
    for row in rows:
        first.setdefault(key(row), row)
    return list(first.values())


def not_in_test(rows: Iterable[T], test: Iterable[Any], *keys: Callable[[Any], Hashable]) -> list[T]:
    """The rows that share none of the keys with a test row; an empty key is shared with nothing."""
    taken = [{key(row) for row in test} - {""} for key in keys]
    return [row for row in rows if not any(key(row) in met for key, met in zip(keys, taken, strict=True))]


def draw_share(keys: Iterable[T], share: float, rng: random.Random) -> set[T]:
    """A share of the different keys, drawn at random; what it holds depends on the order of their first rows."""
    different = list(dict.fromkeys(keys))
    return set(rng.sample(different, round(share * len(different))))


def leave_out_blank(rows: SplitRows[Draft]) -> None:
    """Leave out what has no answer, or a blank one among its answers or options."""
    rows.keep(
        "no blank answer",
        "samples with a blank answer are excluded (PIPER)",
        [row for row in rows.rows if row.answers and all((*row.answers, *row.options))],
    )


def labelled(rows: RawInput, labels: RawInput, allowed: tuple[str, ...]) -> Iterator[Row]:
    """Each row with its `label`, of two files that are joined by line, where both lines are good.

    Raises:
        UserError: a line has a row but no label, or a label but no row, so no label can be trusted.
    """
    found, label_of = list(rows.json_lines()), {line.number: line.text for line in labels.lines()}
    _check_same_lines(rows, labels)
    for row in found:
        if row.number not in label_of:
            continue  # that label's line was bad, and is recorded
        try:
            row.fields[_LABEL] = one_of(_LABEL, clean(label_of[row.number]), allowed)
        except BadRowError as problem:
            labels.reject(row.number, label_of[row.number], str(problem))
        else:
            yield row


def _check_same_lines(rows: RawInput, labels: RawInput) -> None:
    alone = set(rows.numbers) ^ set(labels.numbers)
    if alone:
        line = min(alone)
        lacking, there = ((labels.path, "label"), (rows.path, "row"))
        if line in labels.numbers:
            lacking, there = there, lacking
        raise UserError(
            f"{lacking[0]}: has no {lacking[1]} on line {line:,}, where {there[0]} has a {there[1]} "
            f"({len(labels.numbers):,} labels, {len(rows.numbers):,} rows); expected a label on the line of each row",
            remedy="take both files from the same release",
        )


def chosen(row: Row, options: list[str]) -> str:
    """The option that the label counts to, from 1."""
    return options[int(row.fields[_LABEL]) - 1]
