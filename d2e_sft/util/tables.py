"""Rows of figures as a Markdown table that is also readable as it stands."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any


def markdown_cell(value: Any) -> str:
    """A value as the text of a table's cell: on one line, its bars escaped."""
    return " ".join(str(value).split()).replace("|", r"\|")


def markdown_table(columns: Sequence[str], lines: Sequence[Sequence[str]], left: Collection[str] = ()) -> str:
    """Cells padded to their column's width, to the right but in the columns named in `left`."""
    widths = [max(len(line[i]) for line in [list(columns), *lines]) for i in range(len(columns))]

    def padded(line: Sequence[str]) -> str:
        cells = zip(columns, line, widths, strict=True)
        return " | ".join(c.ljust(w) if name in left else c.rjust(w) for name, c, w in cells)

    return "\n".join(f"| {padded(line)} |" for line in [columns, ["-" * width for width in widths], *lines])
