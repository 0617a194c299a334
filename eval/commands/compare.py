"""`d2e compare`: scores of several runs, or of several seeds, as tables, as a figure and as JSON."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import click

from d2e_sft.model.storage.folder import warn_of_other_weights
from d2e_sft.util.files import PICTURES, check_ending, write_json, write_whole
from eval.compare.decoding import decoding_of_runs
from eval.compare.figures import Part
from eval.compare.runs import MeasuredRun, ScoredRun, load_results, only_subset, reference_first

_FORMS = {".tex": "latex", ".md": "markdown", ".txt": "text"}
seeds_option = click.option(
    "--seeds",
    is_flag=True,
    help="Compare over seeds: each RUN is a pattern in quotes, such as 'runs/sft-*', of runs that differ in the seed.",
)


def load_compared(
    runs: Sequence[Path], bench: str | None, reference: str | None, *, seeds: bool, strict: bool
) -> list[ScoredRun | MeasuredRun]:
    """Read runs or, with `seeds`, groups of them; UserError if one cannot be read, or decoding differs and `strict`.

    A wrong name of a run is refused before pandas is imported.
    """
    if seeds:
        from eval.compare.seeds import load_seeds  # imports pandas

        loaded = reference_first(load_seeds(runs, bench), reference)
    else:
        loaded = reference_first(load_results(runs, bench), reference)
    if strict:
        decoding_of_runs(loaded).refuse()
    for run in loaded:
        warn_of_other_weights(run.folder, run.model)
    return loaded


@click.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--bench", metavar="NAME", help="Benchmark to compare on. [default: the only one all runs share]")
@click.option("--reference", metavar="RUN", help="Run that the others are compared with. [default: the first]")
@seeds_option
@click.option("--subset", metavar="NAME", help="Only the samples of one subset, such as conflict. [default: all]")
@click.option(
    "--part", type=click.Choice(get_args(Part)), help="Only the tables or the figure of this part. [default: all]"
)
@click.option(
    "--groups", is_flag=True, help="Also print the tables by dataset and format if the benchmark is about subsets."
)
@click.option("--strict", is_flag=True, help="Refuse runs that were decoded differently.")
@click.option("--wide", is_flag=True, help="Show all tables, with the intervals and differences of every metric.")
@click.option(
    "--out",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write to FILE instead of printing: .tex has tables for LaTeX, .pdf, .svg and .png a figure, .md all tables, "
    ".json the numbers, .txt the text.",
)
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
    seeds: bool,
    subset: str | None,
    part: Part | None,
    groups: bool,
    strict: bool,
    wide: bool,
    out: Path | None,
    json_file: Path | None,
) -> None:
    """Print the scores of several runs side by side.

    Each RUN is a folder that `d2e eval` scored on the same samples. Prints the mean of exact match (EM) and
    token-level F1 with its 95 % interval, and paired differences to the first RUN, where * marks a corrected p below
    0.05. Also prints the shares of predicted nli labels, what the context adds (for runs that were also evaluated
    --without-context), and a verdict on each RUN against the first.

    If samples have subsets (aligned, conflict, …): accuracy by subset, the gap between aligned and conflict, how often
    the answer is the habit, and verdicts on these. They replace the tables by dataset if at least half of the samples
    are in such subsets. Subsets of fewer than 20 rows are a footnote.

    For free answers to questions (qa and chat, not of event relations): accuracy by what the questions ask for, if two
    kinds have 10 rows or more. For free answers to a context: how faithful they are, by words and by the verdicts of a
    --judge of d2e eval.

    With --seeds: means over seeds with t intervals, and differences paired by seed with t-tests, as in `d2e sweep`.
    All patterns need runs of the same seeds (`train.seed`), two or more.

    For trainings with a probe (`data.probe`): the compute until they read, and the plateau of their curves. Runs that
    differ only in the seed are the seeds of one way of training. For all trainings: what each cost in processor
    seconds.

    Results of crepe, openpi2, boxes and wiqa are compared by the measures of their papers, with paired tests over
    questions, states or procedures. A RUN may also be the folder of such a result, RUN/eval/BENCH, or one that
    `lm-eval --log_samples` wrote.

    \b
    Examples:
      d2e compare runs/base runs/sft runs/d2e --bench piper
      d2e compare runs/d2e runs/teacher runs/sft --bench habit --reference sft
      d2e compare runs/sft runs/d2e --part subsets --out table.tex
      d2e compare --seeds 'runs/sft-*' 'runs/d2e-*' --out figure.pdf
      d2e compare runs/sft runs/d2e --bench wiqa
    """
    ending = (out.suffix.lower() if out else "") or ".txt"
    check_ending(f"--out {out}", ending, (*_FORMS, *PICTURES, ".json"))
    loaded = load_compared(runs, bench, reference, seeds=seeds, strict=strict)
    loaded = loaded if subset is None else only_subset(loaded, subset)
    from eval.compare.compare import compare_results
    from eval.compare.reading import onset_table, plateau_table, probed, verdicts
    from eval.compare.seeds import compare_seeds
    from eval.compare.verdicts import text_of

    comparison = (compare_seeds if seeds else compare_results)(loaded)
    content, reading = comparison.to_json(), probed(loaded) if part is None else None
    curves = {} if reading is None else {"until it reads": onset_table(reading), "plateau": plateau_table(reading)}
    if curves:
        content["curves"] = {name: table.frame.to_dict("records") for name, table in curves.items()}
    if out is not None and ending in PICTURES:
        from eval.pages.report.plots import write_plot  # imports matplotlib

        write_plot(comparison, out, part)
    elif out is not None and ending == ".json":
        write_json(out, content)
    else:
        lines = [] if reading is None else verdicts(reading)
        shown: dict[str, Any] = {"groups": groups or wide, "detail": wide, "part": part}
        text = text_of(comparison, _FORMS[ending], **shown, curves=[*curves.values()], lines=lines)
        click.echo(text, nl=False) if out is None else write_whole(out, text)
    if out is not None:
        click.echo(f"wrote {out}")
    if json_file is not None:
        write_json(json_file, content)
