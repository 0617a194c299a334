"""`d2e table`: lay out scores of runs as in the paper's tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import click

from d2e_sft.util.files import write_whole
from d2e_sft.util.table import Table
from eval.compare.measures.runs import compare_runs_by_measures, load_measured
from eval.compare.measures.tables import measures_latex, measures_text
from eval.compare.paper_entries import read_table
from eval.compare.paper_layouts import Layout
from eval.compare.paper_tables import ENDINGS
from eval.compare.runs import row_benches

_TEXT = "text"


@click.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--bench", metavar="NAME", help="Benchmark to show. [default: all of a RUN's that fit the layout]")
@click.option(
    "--layout",
    type=click.Choice(get_args(Layout)),
    help="The paper's table: piper (2, 4), ablation (5), sensitivity (6), cost (8), refiner (9), ood (10). "
    "[default: piper, or a system's own]",
)
@click.option(
    "--format",
    "form",
    type=click.Choice([_TEXT, *ENDINGS]),
    help="Output. [default: what FILE's ending says (.tex, .json), else markdown; without FILE text of 100 columns]",
)
@click.option(
    "--out", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False), help="Write to FILE instead of printing."
)
def table(
    *, runs: tuple[Path, ...], bench: str | None, layout: Layout | None, form: str | None, out: Path | None
) -> None:
    """Lay the scores of runs out as in the paper's tables, a row for each run and setting.

    Values are the mean of exact match and token-level F1 in percent; Avg. is the plain mean over a relation's
    datasets; the best of a column is bold, the second best underlined (in the terminal 65.6* and 60.1_). Rows of
    `ablation` are named by what the recipe leaves out, rows of `sensitivity` by its α; `cost` has minutes of training
    and milliseconds a sample. LaTeX needs booktabs and multirow.

    For crepe, openpi2, boxes, wiqa and lm-eval: their measures, with intervals and paired tests to the first RUN.

    Example: d2e table runs/base runs/sft runs/d2e --format latex --out tables/piper.tex
    """
    if form is None:
        endings = {f".{ending}": name for name, ending in ENDINGS.items()}
        form = _TEXT if out is None else endings.get(out.suffix.lower(), "markdown")
    by_rows = layout is not None or (bench is None and all(map(row_benches, runs)))
    measured = None if by_rows else load_measured(runs, bench)
    if measured is not None:
        comparison = compare_runs_by_measures(measured)
        if form == "json":
            text = json.dumps(comparison.to_json(), indent=2, ensure_ascii=False) + "\n"
        elif form == "latex":
            text = measures_latex(comparison)
        else:
            text = measures_text(comparison, Table.terminal if form == _TEXT else Table.markdown) + "\n"
    else:
        text = read_table(runs, layout or "piper", bench).render(form)
    if out is None:
        click.echo(text, nl=False)
        return
    write_whole(out, text)
    click.echo(f"wrote {out}")
