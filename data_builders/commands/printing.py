"""What the commands of `d2e data` print alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from d2e_sft.util.table import Table


def print_table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table and a blank line; nothing without rows."""
    if rows:
        click.echo(Table.of(header, rows).terminal() + "\n")
