"""What several sources do with their rows: keep each once, and keep rows of the test out of the others."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar

Row = TypeVar("Row")


def first_of_each(rows: Iterable[Row], key: Callable[[Row], Hashable]) -> list[Row]:
    """The first row of each key, in order."""
    first: dict[Hashable, Row] = {}
    for row in rows:
        first.setdefault(key(row), row)
    return list(first.values())


def not_in_test(rows: Iterable[Row], test: Iterable[Any], *keys: Callable[[Any], Hashable]) -> list[Row]:
    """The rows that share none of the keys with a test row; an empty key is shared with nothing."""
    taken = [{key(row) for row in test} - {""} for key in keys]
    return [row for row in rows if not any(key(row) in met for key, met in zip(keys, taken, strict=True))]
