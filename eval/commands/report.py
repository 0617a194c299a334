"""`d2e report`: one HTML page about one or more runs."""

from __future__ import annotations

from pathlib import Path

import click

from eval.runs import load_runs


@click.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--out",
    metavar="FILE",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="The page to write.",
)
@click.option("--bench", metavar="NAME", help="Benchmark to report on. [default: the only one all runs share]")
@click.option(
    "--samples", type=click.IntRange(min=0), default=6, show_default=True, help="How many samples to show in full."
)
@click.option("--title", metavar="TEXT", help="Heading of the page. [default: the benchmark's name]")
def report(runs: tuple[Path, ...], out: Path, bench: str | None, samples: int, title: str | None) -> None:
    """Write an HTML report of one or more runs.

    The page is one file without external parts: scores with intervals, differences to the first RUN,
    training curves, samples side by side, and each run's recipe and environment. The last RUN is the one
    whose changes the samples show.

    Example: d2e report runs/base runs/sft runs/d2e --out report.html
    """
    from eval.report.page import write_report  # matplotlib takes a second, which `--help` need not wait for

    write_report(load_runs(runs, bench), out, samples=samples, title=title)
    click.echo(f"wrote {out}")
