"""`d2e compare`: scores of several runs as Markdown tables, and as JSON on request."""

from __future__ import annotations

from pathlib import Path

import click

from d2e_sft.util.files import write_json
from eval.compare.compare import compare_runs
from eval.compare.runs import load_runs
from eval.compare.tables import comparison_tables


@click.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--bench", metavar="NAME", help="Benchmark to compare on. [default: the only one all runs share]")
@click.option(
    "--json",
    "json_file",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also write the numbers to FILE, as fractions.",
)
def compare(runs: tuple[Path, ...], bench: str | None, json_file: Path | None) -> None:
    """Print the scores of several runs side by side.

    Each RUN is a folder that `d2e eval` has scored; all must be scored on the same samples. The tables are
    Markdown: exact match (EM) and token-level F1 in percent with 95 % intervals, for nli the shares of
    the predicted labels, for runs that were also evaluated --without-context what the context adds, and paired
    differences to the first RUN, where * marks a corrected p below 0.05.

    Example: d2e compare runs/base runs/sft runs/d2e --bench piper
    """
    comparison = compare_runs(load_runs(runs, bench))
    click.echo(comparison_tables(comparison))
    if json_file is not None:
        write_json(json_file, comparison.to_json())
