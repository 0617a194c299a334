"""The report that `d2e data build` prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple

import click

from d2e_sft.util.terminal import warn
from data_builders.build.coverage import Row
from data_builders.build.mixture import Mixture
from data_builders.build.run import Result
from data_builders.commands.printing import print_table


def print_result(result: Result) -> None:
    """Print warnings, counts, filters, the comparison with the paper, the draw, and the files that were written."""
    for warning in result.warnings:
        warn(warning)
    header = ("dataset", "split", "relation", "format", "rows")
    print_table(header, [(*key, rows) for key, rows in result.counts.items()])
    for (dataset, split), rows in result.splits.items():
        if subsets := Counter(sample.subset for sample in rows.rows if sample.subset):
            said = ", ".join(f"{count:,} {subset}" for subset, count in sorted(subsets.items()))
            click.echo(f"subsets of {dataset} {split}: {said}")
    _print_filters(result)
    if result.coverage:
        _print_coverage(result.coverage)
    if result.mixture:
        _print_mixture(result.mixture)
    for split, counts in result.refining.items():
        click.echo(f"refined {split}: " + ", ".join(f"{count:,} {how.value}" for how, count in sorted(counts.items())))
    for name, done in result.swaps.items():
        click.echo(f"swapped {name} train: {done.swapped:,} of {done.rows:,} rows")
        for reason, count in done.refused.most_common():
            click.echo(f"  refused: {count:,}, {reason.value}")
    if result.bad_rows:
        click.echo(f"bad rows put aside: {result.bad_rows:,}")
    for path in result.files:
        click.echo(f"wrote {path}")


def _print_filters(result: Result) -> None:
    filters = [
        (dataset, split, step.name, f"{step.rows_in:,} → {step.rows_out:,} {step.unit}")
        for (dataset, split), rows in result.splits.items()
        for step in rows.filters
    ]
    print_table(("dataset", "split", "filter", "in → out"), filters)


def _print_coverage(rows: Sequence[Row]) -> None:
    published, obtained = sum(row.published for row in rows), sum(row.obtained for row in rows)
    header = ("relation", "dataset", "format", "published", "obtained", "reason for a difference")
    print_table(header, [*map(astuple, rows), ("all", "", "", published, obtained, "")])


def _print_mixture(mixture: Mixture) -> None:
    rows = [
        (name, f"{ratio:.2f}", mixture.asked[name], mixture.drawn[name], mixture.reason(name))
        for name, ratio in mixture.ratios.items()
    ]
    total = ("all", f"{sum(mixture.ratios.values()):.2f}", sum(mixture.asked.values()), len(mixture.samples), "")
    print_table(("dataset", "ratio %", "wanted", "drawn", "reason for a difference"), [*rows, total])
