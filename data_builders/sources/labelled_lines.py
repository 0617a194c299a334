"""Datasets that come as two files, the rows and their labels, joined by line: SocialIQA and αNLI."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from d2e_sft.errors import UserError
from data_builders.raw import BadRowError, RawInput, choice_field

_LABEL = "label"


def labelled(rows: RawInput, labels: RawInput, allowed: tuple[str, ...]) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, row with its `label`) for each row.

    Raises:
        UserError: the files do not have the same number of lines, so no label can be trusted.
    """
    label_of = dict(labels.lines())
    row_lines = [line for line, _ in rows.lines()]
    if row_lines != list(label_of):
        raise UserError(
            f"{labels.path}: has {len(label_of):,} labels for the {len(row_lines):,} rows of {rows.path}; "
            "expected one label on the line of each row",
            remedy="take both files from the same release",
        )
    for line, row in rows.json_lines():
        try:
            row[_LABEL] = choice_field(_LABEL, label_of[line].strip(), allowed)
        except BadRowError as problem:
            labels.reject(line, label_of[line], str(problem))
            continue
        yield line, row


def chosen(row: dict[str, Any], options: list[str]) -> str:
    """The option that the label counts to, from 1."""
    return options[int(row[_LABEL]) - 1]
