"""How the verbs print a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import click

from d2e_sft.util.tables import WIDTH, hanging, text_table


def print_table(header: Sequence[str], rows: Iterable[Iterable[object]]) -> None:
    """Print a table, whole numbers with a comma between thousands, and an empty line after it.

    What stands in the last column is put below its row, folded, where the row would be wider than a terminal.
    """
    cells = [[f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row] for row in rows]
    lines = text_table([[*row[:-1], ""] for row in (header, *cells)]).splitlines()
    room = max(map(len, lines)) + 2
    for line, (*_, last) in zip(lines, (header, *cells), strict=True):
        if room + len(last) <= WIDTH:
            click.echo(f"{line.ljust(room)}{last}".rstrip())
        else:
            click.echo(f"{line}\n{hanging('    ', last)}")
    click.echo()
