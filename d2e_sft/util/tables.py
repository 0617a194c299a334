"""Tables as text: Markdown that is also readable as it stands, plain columns for a terminal, figures in percent."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Iterable, Sequence
from typing import Any

_OTHER_LINK = re.compile(r"\]\((?!https?://|#)")
WIDTH = 100  # characters of a terminal, or of what is piped


def markdown_cell(value: Any) -> str:
    """A value as the text of a table's cell: on one line, its bars escaped."""
    return " ".join(str(value).split()).replace("|", r"\|")


def harmless_markdown(text: str) -> str:
    """Markdown with no HTML in it, and with links to web pages and places of the page alone.

    For cards, whose texts come from data and models of others: not every site that shows Markdown cleans it.
    """
    return _OTHER_LINK.sub(r"]\(", text.replace("<", "&lt;"))


def inline_code(text: str) -> str:
    """The text as code within a line, whatever back quotes it holds."""
    ticks = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    room = " " if len(ticks) > 1 else ""
    return f"{ticks}{room}{text}{room}{ticks}"


def markdown_row(cells: Iterable[str]) -> str:
    """One line of a Markdown table, its cells as wide as they are."""
    return f"| {' | '.join(cells)} |"


def markdown_table(
    columns: Sequence[str], lines: Sequence[Sequence[str]], left: Collection[str] = (), *, tight: bool = False
) -> str:
    """Cells padded to their column's width, to the right but in the columns named in `left`.

    Args:
        tight: rule the header off with `|---|---|` in place of `| --- | --- |`.
    """
    widths = [max(len(line[i]) for line in [list(columns), *lines]) for i in range(len(columns))]

    def padded(line: Sequence[str]) -> str:
        cells = zip(columns, line, widths, strict=True)
        return markdown_row(c.ljust(w) if name in left else c.rjust(w) for name, c, w in cells)

    rule = markdown_row("-" * width for width in widths)
    return "\n".join([padded(columns), rule.replace(" ", "-") if tight else rule, *map(padded, lines)])


def text_table(rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns for a terminal; the first row is the header."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def hanging(lead: str, text: str, width: int = WIDTH) -> str:
    """Lead and text, on as many lines as the width asks for; the text begins at one column on all of them."""
    whole = textwrap.wrap(text, max(width - len(lead), 20), break_long_words=False, break_on_hyphens=False) or [""]
    return f"\n{' ' * len(lead)}".join([lead + whole[0], *whole[1:]]).rstrip()


def percent(share: float | None) -> str:
    """A share as a number in percent, `61.3`; a dash where there is none."""
    return "–" if share is None else f"{100 * share:.1f}"


def percent_interval(mean: float, low: float, high: float) -> str:
    """A share with its interval in percent: `61.3 [58.2, 64.4]`."""
    return f"{percent(mean)} [{percent(low)}, {percent(high)}]"
