"""`d2e table`: scores of runs laid out as in the paper's tables."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import click

from d2e_sft.util.files import write_whole
from eval.compare.paper_entries import read_table
from eval.compare.paper_render import ENDINGS, TableFormat, render
from eval.compare.paper_tables import Layout


@click.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--bench", metavar="NAME", help="Benchmark to show. [default: all of a RUN's that fit the layout]")
@click.option(
    "--layout",
    type=click.Choice(get_args(Layout)),
    default="piper",
    show_default=True,
    help="piper: Tables 2 and 4; ablation: 5; sensitivity: 6; ood: 10.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(get_args(TableFormat)),
    help="Output. [default: what FILE's ending says (.tex, .json), else markdown]",
)
@click.option(
    "--out", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False), help="Write to FILE instead of printing."
)
def table(
    *, runs: tuple[Path, ...], bench: str | None, layout: Layout, form: TableFormat | None, out: Path | None
) -> None:
    """Lay the scores of runs out as in the paper's tables, a row for each run and setting.

    Values are the mean of exact match and token-level F1 in percent; Avg. is the plain mean over a relation's
    datasets; the best of a column is bold. Rows of `ablation` are named by what the recipe leaves out, rows of
    `sensitivity` by its α. LaTeX needs booktabs and multirow.

    Example: d2e table runs/base runs/sft runs/d2e --format latex --out tables/piper.tex
    """
    form = form or _format_of(out)
    text = render(read_table(runs, layout, bench), form)
    if out is None:
        click.echo(text, nl=False)
        return
    write_whole(out, text)
    click.echo(f"wrote {out}")


def _format_of(out: Path | None) -> TableFormat:
    ending = "" if out is None else out.suffix.removeprefix(".").lower()
    return next((form for form, own in ENDINGS.items() if own == ending), "markdown")
