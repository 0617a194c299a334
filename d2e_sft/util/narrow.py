"""Markdown for a terminal: a table that is too wide is shown in parts, each with the columns that name its rows."""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Iterator, Sequence

from d2e_sft.util.tables import WIDTH, markdown_table

_BAR = re.compile(r"(?<!\\)\|")


def narrowed(text: str, *, keys: int = 1, width: int = WIDTH) -> str:
    """Text with its lines folded and its Markdown tables split, where they are wider than so many columns.

    Args:
        keys: how many of a table's first columns name a row, and are repeated in each part.
    """
    blocks = itertools.groupby(text.split("\n"), key=lambda line: line.startswith("|"))
    return "\n".join(
        itertools.chain.from_iterable(
            _table(list(lines), keys, width) if is_table else _folded(lines, width) for is_table, lines in blocks
        )
    )


def _folded(lines: Iterator[str], width: int) -> Iterator[str]:
    for line in lines:
        yield from (
            textwrap.wrap(line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
            if len(line) > width
            else [line]
        )


def _table(lines: Sequence[str], keys: int, width: int) -> Iterator[str]:
    if max(map(len, lines)) <= width:
        yield from lines
        return
    header, rule, *rows = lines
    padded = [_BAR.split(line)[1:-1] for line in (header, *rows)]
    cells = [[cell.strip() for cell in line] for line in padded]
    left = {name for place, name in enumerate(cells[0]) if any(line[place].endswith("  ") for line in padded)}
    columns = list(zip(*cells, strict=True))
    for number, part in enumerate(_parts([max(map(len, column)) for column in columns], keys, width)):
        own = [[row[place] for place in part] for row in cells]
        yield from ([""] if number else [])
        yield from markdown_table(own[0], own[1:], left=left, tight=" " not in rule).split("\n")


def _parts(widths: Sequence[int], keys: int, width: int) -> Iterator[list[int]]:
    """Places of the columns of each part: the keys, and of the others as many as fit, one at least."""
    named = list(range(keys))
    part, others = list(named), range(keys, len(widths))
    for place in others:
        together = sum(widths[i] + 3 for i in [*part, place]) + 1
        if together > width and len(part) > keys:
            yield part
            part = list(named)
        part.append(place)
    yield part
