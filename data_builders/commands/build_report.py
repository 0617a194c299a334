"""The report that `d2e data build` prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from d2e_sft.util.terminal import is_quiet, warn
from data_builders.build.run import Result
from data_builders.commands.shared import print_refinement, print_table

_SHOWN = 3  # habits that are named


def print_result(result: Result) -> None:
    """Print warnings, counts, filters, the comparison with the paper, the draw, and the files that were written.

    With `--quiet` only warnings, bad rows and files: the manifest has the counts.
    """
    splits = [
        (name, split, entry)
        for name, dataset in result.manifest["datasets"].items()
        for split, entry in dataset["splits"].items()
    ]
    for warning in result.warnings:
        warn(warning)
    if not is_quiet():
        _print_counts(result, splits)
    if bad := sum(entry["bad_rows"] for _, _, entry in splits):
        click.echo(f"bad rows put aside: {bad:,}")
    for path in result.files:
        click.echo(f"wrote {path}")


def _print_counts(result: Result, splits: Sequence[tuple[str, str, dict[str, Any]]]) -> None:
    manifest = result.manifest
    header = ("dataset", "split", "relation", "format", "rows")
    print_table(header, [(*key, rows) for key, rows in result.counts.items()])
    for name, split, entry in splits:
        if subsets := entry.get("rows_by_subset"):
            click.echo(f"subsets of {name} {split}: {_counted(subsets)}")
    filters = [
        (name, split, step["name"], f"{step['rows_in']:,} → {step['rows_out']:,} {step['unit']}")
        for name, split, entry in splits
        for step in entry["filters"]
    ]
    print_table(("dataset", "split", "filter", "in → out"), filters)
    _print_comparisons(manifest)
    print_refinement(
        ("dataset", "split"), [((name, split), entry["rows_written"], entry) for name, split, entry in splits]
    )
    for split, outcomes in manifest.get("refining", {}).items():
        click.echo(f"refined {split}: {_counted(outcomes)}")
    for option, split in (("swap", "train"), ("swap-test", "test")):
        for name, done in manifest.get(option, {"datasets": {}})["datasets"].items():
            pools = f" ({_counted(done['pools'])})" if done["pools"] else ""
            click.echo(f"swapped {name} {split}: {done['swapped']:,} of {done['rows']:,} rows{pools}")
            for reason, count in sorted(done["refused"].items(), key=lambda item: -item[1]):
                click.echo(f"  refused: {count:,}, {reason}")
            if split == "test" and done["swapped"]:
                click.echo(f"habits of {name} test: {_habits(done.get('habits', {}), done['swapped'])}")


def _print_comparisons(manifest: dict[str, Any]) -> None:
    """Print published counts and ratios with what was obtained, if the suite has some."""
    if rows := [tuple(row.values()) for row in manifest.get("published_counts", ())]:
        total = ("all", "", "", sum(row[3] for row in rows), sum(row[4] for row in rows), "")
        header = ("relation", "dataset", "format", "published", "obtained", "reason for a difference")
        print_table(header, [*rows, total])
    if mixture := manifest.get("mixture"):
        parts = [
            (name, f"{part['ratio']:.2f}", part["asked"], part["drawn"], part["reason"])
            for name, part in mixture["datasets"].items()
        ]
        ratios = sum(part["ratio"] for part in mixture["datasets"].values())
        drawn = ("all", f"{ratios:.2f}", sum(part[2] for part in parts), mixture["size"], "")
        print_table(("dataset", "ratio %", "wanted", "drawn", "reason for a difference"), [*parts, drawn])


def _habits(habits: dict[str, int], pairs: int) -> str:
    """Say how many pairs of a test row and its twin have which habit, first the most frequent of training rows."""
    known = sum(habits.values())
    shown = [f"{count:,} {answer!r}" for answer, count in list(habits.items())[:_SHOWN]]
    if len(habits) > _SHOWN:
        shown.append(f"{known - sum(list(habits.values())[:_SHOWN]):,} others")
    return ", ".join([*shown, *([f"{pairs - known:,} their own tag or answer"] if pairs > known else [])])


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())
