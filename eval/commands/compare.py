"""`d2e compare`: scores of several runs as tables, and as JSON on request."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from d2e_sft.util.files import write_json, write_whole
from eval.compare.decoding import decoding_of_runs
from eval.compare.runs import load_results, only_subset, reference_first


@click.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--bench", metavar="NAME", help="Benchmark to compare on. [default: the only one all runs share]")
@click.option("--reference", metavar="RUN", help="Run that the others are compared with. [default: the first]")
@click.option("--subset", metavar="NAME", help="Only the samples of one subset, such as conflict. [default: all]")
@click.option(
    "--groups", is_flag=True, help="Also print the tables by dataset and format if the benchmark is about subsets."
)
@click.option("--strict", is_flag=True, help="Refuse runs that were decoded differently.")
@click.option("--wide", is_flag=True, help="Show all tables, with the intervals and differences of every metric.")
@click.option(
    "--out",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write to FILE instead of printing: .md has all tables, .json the numbers, other endings the text.",
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
    subset: str | None,
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

    For trainings with a probe (`data.probe`): the compute until they read, and the plateau of their curves. Runs that
    differ only in the seed are the seeds of one way of training.

    Results of crepe, openpi2, boxes and wiqa are compared by the measures of their papers, with paired tests over
    questions, states or procedures. A RUN may also be the folder of such a result, RUN/eval/BENCH, or one that
    `lm-eval --log_samples` wrote.

    Example: d2e compare runs/base runs/sft runs/d2e --bench piper

    Example by subset: d2e compare runs/d2e runs/teacher runs/sft --bench habit --reference sft

    Example of a system: d2e compare runs/sft runs/d2e --bench wiqa
    """
    loaded = reference_first(load_results(runs, bench), reference)
    if strict:
        decoding_of_runs(loaded).refuse()
    from eval.compare.compare import compare_results  # imports pandas
    from eval.compare.reading import onset_table, plateau_table, probed, verdicts
    from eval.compare.verdicts import markdown_text, terminal_text

    comparison = compare_results(loaded if subset is None else only_subset(loaded, subset))
    content, reading = comparison.to_json(), probed(loaded)
    as_page = out is not None and out.suffix == ".md"
    in_terminal = partial(terminal_text, groups=groups or wide, detail=wide)
    parts = [(markdown_text if as_page else in_terminal)(comparison)]
    if reading is not None:
        tables = {"until it reads": onset_table(reading), "plateau": plateau_table(reading)}
        content["curves"] = {name: table.frame.to_dict("records") for name, table in tables.items()}
        parts += [table.markdown() if as_page else table.terminal() for table in tables.values()]
        parts.append("\n".join(verdicts(reading)))
    text = "\n\n".join(parts)
    if out is None:
        click.echo(text)
    else:
        write_json(out, content) if out.suffix == ".json" else write_whole(out, text + "\n")
        click.echo(f"wrote {out}")
    if json_file is not None:
        write_json(json_file, content)
