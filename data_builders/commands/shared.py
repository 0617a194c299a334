"""What the commands of `d2e data` share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from d2e_sft.util.table import Table

PATH = click.Path(path_type=Path)
FILE = click.Path(path_type=Path, dir_okay=False)


def print_table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table and a blank line; nothing without rows."""
    if rows:
        click.echo(Table.of(header, rows).terminal() + "\n")
