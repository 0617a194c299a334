"""`d2e data`: the command line of the builders, and nothing but that."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from d2e_sft.sample import BAD_ROWS_FILE, BadRow, check_writable_ending, read_samples, write_bad_rows, write_samples
from data_builders.build import Options, Result
from data_builders.build import build as build_datasets
from data_builders.sources import SOURCES


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def data() -> None:
    """Build and convert EventSample data.

    Example: d2e data build --datasets boxes --out data/boxes
    """


@data.command()
@click.option("--datasets", required=True, help=f"Comma-separated names, of: {', '.join(SOURCES)}.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder for the results.")
@click.option(
    "--raw",
    type=click.Path(path_type=Path),
    help="Folder with the raw files as DATASET/FILE; without it the official files are downloaded.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of every draw.")
@click.option("--skip-bad", is_flag=True, help=f"Put bad raw rows aside in {BAD_ROWS_FILE} and count them.")
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
def build(*, datasets: str, out: Path, raw: Path | None, seed: int, skip_bad: bool, settings: tuple[str, ...]) -> None:
    """Build datasets into OUT: train.parquet, test.parquet (and dev.parquet) and manifest.json.

    KEY=VALUE sets an option of a dataset (boxes.boxes=3) or of the refiner (refine.threshold=0.5).

    Example: d2e data build --datasets boxes,tracie --out data/mini boxes.boxes=3 boxes.operations=2
    """
    names = [name.strip() for name in datasets.split(",") if name.strip()]
    result = build_datasets(Options(names, out, raw, seed=seed, skip_bad=skip_bad, settings=settings))
    for warning in result.warnings:
        click.echo(f"warning: {warning}", err=True)
    _report(result)


@data.command()
@click.argument("source", metavar="IN", type=click.Path(path_type=Path))
@click.argument("target", metavar="OUT", type=click.Path(path_type=Path))
@click.option("--skip-bad", is_flag=True, help="Put bad rows aside in OUT.bad.jsonl and count them.")
def convert(source: Path, target: Path, skip_bad: bool) -> None:
    """Check EventSample rows in IN and write them to OUT; each is .parquet or .jsonl.

    Example: d2e data convert own.jsonl own.parquet --skip-bad
    """
    check_writable_ending(target)
    bad_rows: list[BadRow] = []
    samples = read_samples(source, bad_rows=bad_rows if skip_bad else None)
    write_samples(samples, target)
    click.echo(f"{target}: {len(samples):,} rows")
    aside = target.with_name(target.name + ".bad.jsonl")
    if skip_bad:
        write_bad_rows(bad_rows, aside)
    if bad_rows:
        click.echo(f"{aside}: {len(bad_rows):,} bad rows put aside")


def _report(result: Result) -> None:
    header = ("dataset", "split", "relation", "format", "rows")
    _table([header, *((*key, f"{rows:,}") for key, rows in result.counts.items())])
    filters = [
        (dataset, split, step.name, f"{step.rows_in:,} → {step.rows_out:,} {step.unit}")
        for (dataset, split), rows in result.splits.items()
        for step in rows.filters.steps
    ]
    if filters:
        click.echo()
        _table([("dataset", "split", "filter", "in → out"), *filters])
    click.echo()
    if result.bad_rows:
        click.echo(f"bad rows put aside: {result.bad_rows:,}")
    for path in result.files:
        click.echo(f"wrote {path}")


def _table(rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
