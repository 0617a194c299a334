"""Bad rows of raw files: how one is described, and where they go when they are skipped."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

_SHOWN = 200

# Stands for the value of a field that a row lacks: `row.get(name, MISSING)`.
MISSING: Any = object()


class BadRowError(Exception):
    """One raw row that breaks its dataset's format; `RawInput` catches it where it reads and where it parses rows."""

    @classmethod
    def at(cls, name: str, value: object, expected: str) -> BadRowError:
        """The row's field `name` holds `value` (MISSING: is not there) instead of what is expected."""
        found = "missing" if value is MISSING else f"got {shown(value)}"
        return cls(f"{name}: {found}; expected {expected}")


@dataclass
class BadRows:
    """What becomes of bad rows: the first one is an error, or all are collected for the side file."""

    skip: bool = False
    entries: list[dict[str, Any]] = field(default_factory=list)

    def count(self, dataset: str, split: str) -> int:
        return sum(entry["dataset"] == dataset and entry["split"] == split for entry in self.entries)


def shown(value: object, length: int = _SHOWN) -> str:
    """A value as a message shows it: its repr, cut to `length` characters."""
    try:
        return shortened(repr(value), length)
    except RecursionError:
        return f"a {type(value).__name__} that nests too deeply to be shown"


def shortened(text: str, length: int = _SHOWN) -> str:
    """The text, or its first `length` characters and how many were left out."""
    left_out = len(text) - length
    return text if left_out <= 0 else f"{text[:length]}… ({left_out:,} more characters)"
