"""How the verbs print a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import click

from d2e_sft.util.tables import text_table


def print_table(header: Sequence[str], rows: Iterable[Iterable[object]]) -> None:
    """Print a table, whole numbers with a comma between thousands, and an empty line after it."""
    cells = [[f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row] for row in rows]
    click.echo(text_table([header, *cells]))
    click.echo()
