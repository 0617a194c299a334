"""`d2e report`: one HTML page about one or more runs."""

from pathlib import Path

import click
from click.core import ParameterSource

from d2e_sft.util.errors import UserError
from d2e_sft.util.terminal import folded, is_quiet, say
from eval.commands.compare import load_compared, seeds_option
from eval.compare.runs import ScoredRun

_OF_SAMPLES = ("browse", "samples", "no_texts", "no_texts_of")  # options


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
@click.option("--reference", metavar="RUN", help="Run that the others are compared with. [default: the first]")
@seeds_option
@click.option(
    "--browse",
    metavar="N",
    type=click.IntRange(min=0),
    help="Number of samples in the page's browser; 0 leaves it out. [default: all]",
)
@click.option(
    "--samples",
    type=click.IntRange(min=0),
    default=5,
    show_default=True,
    help="Number of samples that can be read without scripts.",
)
@click.option("--no-texts", is_flag=True, help="Leave out contexts, questions, answers and outputs of all samples.")
@click.option(
    "--no-texts-of", metavar="DATASET", multiple=True, help="The same for one dataset's samples; repeatable."
)
@click.option("--strict", is_flag=True, help="Refuse runs that were decoded differently.")
@click.option("--title", metavar="TEXT", help="Heading of the page. [default: the benchmark's name]")
def report(
    runs: tuple[Path, ...],
    *,
    out: Path,
    bench: str | None,
    reference: str | None,
    seeds: bool,
    browse: int | None,
    samples: int,
    no_texts: bool,
    no_texts_of: tuple[str, ...],
    strict: bool,
    title: str | None,
) -> None:
    """Write an HTML report of one or more runs, and print its verdicts.

    The page is one file for screen, phone and print. It opens with the result of the second RUN against the first
    (the next trained one, if the second is untrained): a sentence, large numbers and one picture. Then come a verdict
    on each RUN, scores with intervals and differences, samples, error patterns from `d2e errors`, training curves,
    recipes and environments. Its browser shows every sample with all answers, the changed ones first, searchable and
    filtered.

    With --seeds the page is about means over seeds and holds each seed's scores, but no samples.

    For crepe, openpi2, boxes, wiqa and lm-eval: the same opening, the paper's measures, and changed items.

    Example: d2e report runs/sft runs/d2e runs/base --out report.html

    Over seeds: d2e report --seeds 'runs/sft-*' 'runs/d2e-*' --out seeds.html

    Without the texts of a dataset: d2e report runs/base runs/d2e --no-texts-of timeqa --out report.html
    """
    if no_texts and no_texts_of:
        raise UserError("--no-texts leaves out all texts; expected no --no-texts-of", "drop one of the two")
    source = click.get_current_context().get_parameter_source
    if seeds and (of_samples := [name for name in _OF_SAMPLES if source(name) is ParameterSource.COMMANDLINE]):
        raise UserError(
            f"--{of_samples[0].replace('_', '-')}: a page of --seeds holds no samples", "drop one of the two"
        )
    loaded = load_compared(runs, bench, reference, seeds=seeds, strict=strict)
    from eval.compare.compare import compare_results  # imports pandas
    from eval.compare.judged import read_patterns
    from eval.compare.seeds import compare_seeds
    from eval.compare.verdicts import closing_lines
    from eval.pages.report.page import ReportOptions, write_report  # imports matplotlib
    from eval.pages.report.patterns import commands_for
    from eval.pages.report.samples import datasets_of

    rows = [run for run in loaded if isinstance(run, ScoredRun) and not seeds]
    if no_texts_of and not rows:
        raise UserError(f"--no-texts-of {no_texts_of[0]}: a page of {loaded[0].folder.name} holds no texts", "drop it")
    left_out = datasets_of(rows[0]) if no_texts and rows else no_texts_of
    comparison = (compare_seeds if seeds else compare_results)(loaded)
    write_report(loaded, out, ReportOptions(samples, browse, left_out, title), comparison)
    click.echo(f"wrote {out} ({out.stat().st_size / 1e6:.1f} MB)")
    lacking = [run for run in rows if read_patterns(run) is None]
    if lacking:
        first, *others = (run.label for run in lacking)
        more = f" (of {', '.join(others)} likewise)" if others else ""
        say(folded(f"without error patterns; to find those of {first} by rule first{more}:"))
        say(folded("\n".join(f"  {command}" for command in commands_for(lacking[0]))))
    if lines := closing_lines(comparison, words=not is_quiet()):
        click.echo(folded("\n".join(["", *lines])))
