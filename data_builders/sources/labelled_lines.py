"""Datasets that come as two files, the rows and their labels, joined by line: SocialIQA and αNLI."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from d2e_sft.util.errors import UserError
from data_builders.raw.bad_rows import BadRowError
from data_builders.raw.fields import choice_field, clean
from data_builders.raw.reader import RawInput

_LABEL = "label"


def labelled(rows: RawInput, labels: RawInput, allowed: tuple[str, ...]) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, row with its `label`) for each row of which both lines are good.

    Raises:
        UserError: a line has a row but no label, or a label but no row, so no label can be trusted.
    """
    row_of, label_of = dict(rows.json_lines()), dict(labels.lines())
    _check_same_lines(rows, labels)
    for line, row in row_of.items():
        if line not in label_of:
            continue  # that label's line was bad, and is recorded
        try:
            row[_LABEL] = choice_field(_LABEL, clean(label_of[line]), allowed)
        except BadRowError as problem:
            labels.reject(line, label_of[line], str(problem))
            continue
        yield line, row


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


def chosen(row: dict[str, Any], options: list[str]) -> str:
    """The option that the label counts to, from 1."""
    return options[int(row[_LABEL]) - 1]
