"""`d2e compare`: scores of several runs as tables, and as JSON on request."""

from __future__ import annotations

from pathlib import Path

import click

from d2e_sft.util.errors import UserError
from d2e_sft.util.files import write_json
from eval.compare.compare import Comparison, compare_runs
from eval.compare.measures.runs import MeasuredRun, compare_runs_by_measures, load_measured, measured_first
from eval.compare.measures.tables import markdown_text, narrow_text
from eval.compare.narrow_tables import faithfulness_tables, narrow_tables
from eval.compare.runs import load_runs, only_subset, reference_first
from eval.compare.subset_tables import all_tables, subset_comparison_tables
from eval.compare.verdicts import closing_lines


@click.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--bench", metavar="NAME", help="Benchmark to compare on. [default: the only one all runs share]")
@click.option("--reference", metavar="RUN", help="Run that differences are to. [default: the first]")
@click.option("--subset", metavar="NAME", help="Samples of one subset alone, such as conflict. [default: all]")
@click.option("--groups", is_flag=True, help="Of samples with subsets, print the tables by dataset and format, too.")
@click.option("--wide", is_flag=True, help="Print Markdown tables with all columns, whatever the terminal's width.")
@click.option(
    "--json",
    "json_file",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also write the numbers to FILE, as fractions.",
)
def compare(
    runs: tuple[Path, ...],
    *,
    bench: str | None,
    reference: str | None,
    subset: str | None,
    groups: bool,
    wide: bool,
    json_file: Path | None,
) -> None:
    """Print the scores of several runs side by side.

    Each RUN is a folder that `d2e eval` has scored; all must be scored on the same samples. Printed are the mean of
    exact match (EM) and token-level F1 in percent with its 95 % interval, paired differences to the first RUN, where *
    marks a corrected p below 0.05, for nli the shares of the predicted labels, for runs that were also evaluated
    --without-context what the context adds, and a verdict for each RUN against the first. --wide prints Markdown with
    the intervals and differences of every metric.

    Where samples have subsets (aligned, conflict, …): accuracy by subset, the gap between aligned and conflict, how
    often the answer is the habit, paired differences, and a verdict for each RUN against the reference. Where answers
    are free ones to a context (format chat): how faithful they are to it, by words and, if d2e eval asked a --judge,
    by its verdicts.

    Results of crepe, openpi2, boxes and wiqa are compared by the measures of their papers, with paired tests over
    questions, states or procedures. A RUN may be a folder of such a result, RUN/eval/BENCH, or one that `lm-eval
    --log_samples` wrote.

    Example: d2e compare runs/base runs/sft runs/d2e --bench piper

    Example by subset: d2e compare runs/d2e runs/teacher runs/sft --bench habit --reference sft

    Example of a system: d2e compare runs/sft runs/d2e --bench wiqa
    """
    measured = load_measured(runs, bench)
    if measured is not None:
        if subset is not None:
            raise UserError(f"--subset {subset}: {measured[0].bench} has no subsets", remedy="drop it")
        _compare_measures(measured, reference, wide=wide, json_file=json_file)
        return
    loaded = load_runs(runs, bench)
    if reference is not None:
        loaded = reference_first(loaded, reference)
    if subset is not None:
        loaded = only_subset(loaded, subset)
    comparison = compare_runs(loaded)
    tables = all_tables(comparison) if wide else _narrow(comparison, groups=groups)
    click.echo("\n\n".join(filter(None, [tables, closing_lines(comparison)])))
    if json_file is not None:
        write_json(json_file, comparison.to_json())


def _narrow(comparison: Comparison, *, groups: bool) -> str:
    """Where samples have subsets, those come first to mind: the tables by group are shown on request."""
    if comparison.subsets is None:
        return narrow_tables(comparison)
    if groups:
        parts = [narrow_tables(comparison)]
    else:
        parts = [f"{comparison.bench}; tables by dataset, relation and format: --groups"]
        parts += [faithfulness_tables(comparison)] if comparison.faithfulness else []
    return "\n\n".join([*parts, subset_comparison_tables(comparison.subsets)])


def _compare_measures(runs: list[MeasuredRun], reference: str | None, *, wide: bool, json_file: Path | None) -> None:
    ordered = runs if reference is None else measured_first(runs, reference)
    comparison = compare_runs_by_measures(ordered)
    click.echo((markdown_text if wide else narrow_text)(comparison))
    if json_file is not None:
        write_json(json_file, comparison.to_json())
