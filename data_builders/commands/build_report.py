"""What `d2e data build` prints about what it built."""

from __future__ import annotations

from collections.abc import Sequence

import click

from d2e_sft.util.tables import text_table
from data_builders.build.coverage import Row
from data_builders.build.mixture import Mixture
from data_builders.build.run import Result


def print_result(result: Result) -> None:
    """Print warnings, counts, filters, the comparison with the paper, the draw, and the files that were written."""
    for warning in result.warnings:
        click.echo(f"warning: {warning}", err=True)
    header = ("dataset", "split", "relation", "format", "rows")
    click.echo(text_table([header, *((*key, f"{rows:,}") for key, rows in result.counts.items())]))
    click.echo()
    _print_filters(result)
    if result.coverage:
        _print_coverage(result.coverage)
    if result.mixture:
        _print_mixture(result.mixture)
    for split, counts in result.refining.items():
        click.echo(f"refined {split}: " + ", ".join(f"{count:,} {how.value}" for how, count in sorted(counts.items())))
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
    if filters:
        click.echo(text_table([("dataset", "split", "filter", "in → out"), *filters]))
        click.echo()


def _print_coverage(rows: Sequence[Row]) -> None:
    published, obtained = sum(row.published for row in rows), sum(row.obtained for row in rows)
    click.echo(
        text_table(
            [
                ("relation", "dataset", "format", "published", "obtained", "reason for a difference"),
                *((r.relation, r.dataset, r.format, f"{r.published:,}", f"{r.obtained:,}", r.reason) for r in rows),
                ("all", "", "", f"{published:,}", f"{obtained:,}", ""),
            ]
        )
    )
    click.echo()


def _print_mixture(mixture: Mixture) -> None:
    click.echo(
        text_table(
            [
                ("dataset", "ratio %", "wanted", "drawn", "reason for a difference"),
                *(
                    (
                        name,
                        f"{ratio:.2f}",
                        f"{mixture.asked[name]:,}",
                        f"{mixture.drawn[name]:,}",
                        mixture.reason(name),
                    )
                    for name, ratio in mixture.ratios.items()
                ),
                (
                    "all",
                    f"{sum(mixture.ratios.values()):.2f}",
                    f"{sum(mixture.asked.values()):,}",
                    f"{len(mixture.samples):,}",
                    "",
                ),
            ]
        )
    )
    click.echo()
