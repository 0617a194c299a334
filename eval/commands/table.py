"""`d2e table`: lay out scores of runs as in the paper's tables."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import click

from d2e_sft.model.storage.folder import warn_of_other_weights
from d2e_sft.util.errors import UserError, did_you_mean
from d2e_sft.util.files import write_whole
from d2e_sft.util.markup import latex_table
from d2e_sft.util.table import Table
from eval.compare.decoding import decoding_of_runs
from eval.compare.paper import ENDINGS, read_table
from eval.compare.paper_layouts import Layout
from eval.compare.published import PAPERS, PIPER, beside_published, published_tables
from eval.compare.runs import MeasuredRun, load_measured, row_benches

_TEXT = "text"


@click.command()
@click.argument("runs", metavar="RUN...", nargs=-1, type=click.Path(path_type=Path))
@click.option("--bench", metavar="NAME", help="Benchmark to show. [default: all of a RUN's that fit the layout]")
@click.option(
    "--published",
    is_flag=True,
    help="Also print the paper's values and the differences; without RUN, the paper's tables (of --bench).",
)
@click.option("--published-model", metavar="NAME", help="The paper's model to compare with. [default: the RUN's own]")
@click.option(
    "--layout",
    type=click.Choice(get_args(Layout)),
    help="The paper's table: piper (2), tuned (4), ablation (5), sensitivity (6), cost (8), refiner (9), ood (10). "
    "[default: piper, tuned if a RUN was trained, or a system's own]",
)
@click.option("--strict", is_flag=True, help="Refuse runs that were decoded differently.")
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
    *,
    runs: tuple[Path, ...],
    bench: str | None,
    published: bool,
    published_model: str | None,
    layout: Layout | None,
    strict: bool,
    form: str | None,
    out: Path | None,
) -> None:
    """Lay the scores of runs out as in the paper's tables, a row for each run and setting.

    Values are the mean of exact match and token-level F1 in percent; Avg. is the plain mean over a relation's
    datasets. The best of a column is bold, the second best underlined (in the terminal 65.6^ and 60.1_); in `piper`
    among models of one size and setting. In `tuned` bold is also what is above the frozen model, and * what is above
    its SFT. Rows of `ablation` are named by what the recipe leaves out, rows of `sensitivity` by its α; `cost` has
    minutes of training and milliseconds a sample. LaTeX needs booktabs and multirow.

    For crepe, openpi2, boxes, wiqa and lm-eval: their measures, with intervals and paired tests to the first RUN.

    With --published a difference carries ‡ where the 95 % interval of our score excludes the published value.

    \b
    Examples:
      d2e table runs/base runs/sft runs/d2e --format latex --out tables/piper.tex
      d2e table runs/qwen-sft runs/qwen-d2e --published
      d2e table --published --bench crepe
    """
    if form is None:
        endings = {f".{ending}": name for name, ending in ENDINGS.items()}
        form = _TEXT if out is None else endings.get(out.suffix.lower(), "markdown")
    against = published_model or "" if published or published_model else None
    if not runs:
        if against is None:
            raise click.UsageError("Missing argument 'RUN...'.")
        text = _tables_as(_published_alone(bench, layout, published_model), form)
    elif layout is None and (measured := _measured(runs, bench)) is not None:
        if strict:
            decoding_of_runs(measured).refuse()
        for run in measured:
            warn_of_other_weights(run.folder, run.model)
        text = _measures_as(measured, form, published=against is not None)
    else:
        paper_table = read_table(runs, layout, bench, against)
        if strict:
            paper_table.decoding.refuse()
        for row in paper_table.rows:
            warn_of_other_weights(row.run / "eval" / row.bench, row.scores.model)
        text = paper_table.render(form)
    if out is None:
        click.echo(text, nl=False)
        return
    write_whole(out, text)
    click.echo(f"wrote {out}")


def _measured(runs: Sequence[Path], bench: str | None) -> list[MeasuredRun] | None:
    return None if bench is None and all(map(row_benches, runs)) else load_measured(runs, bench)


def _published_alone(bench: str | None, layout: Layout | None, model: str | None) -> list[Table]:
    """Return the tables of a benchmark's paper; UserError without such a paper, or with options that fit none."""
    name = bench or PIPER
    if model is not None:
        raise UserError(f"--published-model {model}: without RUN there is nothing to compare", "give runs, or drop it")
    if name not in PAPERS:
        raise UserError(
            f"--published --bench {name}: expected one of {', '.join(PAPERS)}.{did_you_mean(name, PAPERS)}",
            remedy="name one of these, or give runs",
        )
    if not (tables := published_tables(name, layout)):
        raise UserError(f"--layout {layout} --bench {name}: this paper has no such table", "drop --layout")
    return tables


def _measures_as(runs: Sequence[MeasuredRun], form: str, *, published: bool) -> str:
    from eval.compare.compare import compare_results  # imports pandas
    from eval.compare.verdicts import text_of

    comparison = compare_results(runs)
    beside = beside_published(comparison, runs) if published else None
    if form == "json":
        content = comparison.to_json() | ({} if beside is None else {"published": _plain(beside)})
        return json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    text = text_of(comparison, form)
    if published and beside is None:
        return f"{text}\nNo published value is of these measures and options.\n"
    return text if beside is None else f"{text}\n{_tables_as([beside], form)}"


def _tables_as(tables: Sequence[Table], form: str) -> str:
    if form == "json":
        return json.dumps([_plain(table) for table in tables], indent=2, ensure_ascii=False) + "\n"
    if form == "latex":
        return "\n".join(latex_table(table, f"published-{number}") for number, table in enumerate(tables, start=1))
    return "\n\n".join(map(_writer(form), tables)) + "\n"


def _writer(form: str) -> Callable[[Table], str]:
    return Table.terminal if form == _TEXT else Table.markdown


def _plain(table: Table) -> dict[str, Any]:
    return {"caption": table.caption, "columns": table.header()[-1], "rows": table.rows()}
