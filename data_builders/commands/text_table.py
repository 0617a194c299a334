"""Tables on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

import click


def print_table(rows: Sequence[tuple[str, ...]]) -> None:
    """Print rows in aligned columns; the first row is the header."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
