"""What the commands of `d2e data` share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from d2e_sft.util.table import Table, percent

PATH = click.Path(path_type=Path)
FILE = click.Path(path_type=Path, dir_okay=False)


def print_table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table and a blank line; nothing without rows."""
    if rows:
        click.echo(Table.of(header, rows).terminal() + "\n")


def print_refinement(head: Sequence[str], groups: Sequence[tuple[Sequence[str], int, Mapping[str, Any]]]) -> None:
    """Print what the refiner left of each group's contexts; nothing without refined contexts.

    A group is its name, its rows, and its refinement as the manifest has it (`describe_refinement`).
    """
    refined = [group for group in groups if group[2]["refined_share_of_words"] is not None]
    cells = [
        (*name, f"{unchanged:,}", f"{percent(unchanged / rows)} %", f"{percent(found['refined_share_of_words'])} %")
        for name, rows, found in refined
        for unchanged in [found["rows_refined_unchanged"]]
    ]
    if len(refined) > 1:
        rows, unchanged = (
            sum(rows for _, rows, _ in refined),
            sum(one["rows_refined_unchanged"] for *_, one in refined),
        )
        cells.append(("all", *[""] * (len(head) - 1), f"{unchanged:,}", f"{percent(unchanged / rows)} %", ""))
    print_table((*head, "refined = original", "of the rows", "words kept"), cells)
