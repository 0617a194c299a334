"""What the commands of `d2e data` share."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from d2e_sft.util.errors import UserError, did_you_mean
from d2e_sft.util.table import Table

PATH = click.Path(path_type=Path)
FILE = click.Path(path_type=Path, dir_okay=False)


def print_table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table and a blank line; nothing without rows."""
    if rows:
        click.echo(Table.of(header, rows).terminal() + "\n")


def some_of(known: Sequence[str]) -> Callable[[str, str], tuple[str, ...]]:
    """Return how a `comma_list` of some of these names is read."""

    def read(option: str, text: str) -> tuple[str, ...]:
        names = {name.strip() for name in text.split(",")}
        if unknown := sorted(names.difference(known)):
            hint = did_you_mean(unknown[0], known)
            raise UserError(f"{option}: got {unknown[0]!r}; expected some of {', '.join(known)}.{hint}")
        return tuple(name for name in known if name in names)

    return read
