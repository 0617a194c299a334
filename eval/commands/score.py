"""`d2e score`: run a scorer on one or several files of predictions."""

import json
from pathlib import Path

import click

from d2e_sft.config.options import comma_list
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import PICTURES, check_ending, write_whole
from d2e_sft.util.terminal import warn
from eval.systems import SystemName

_STDOUT = "-"


@click.command("score")
@click.argument("system", type=SystemName())
@click.argument("files", metavar="[PREDICTIONS]...", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--predictions",
    "more",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="FILE|DIR",
    help="The same as PREDICTIONS; repeatable.",
)
@click.option(
    "--gold",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE|DIR",
    help="The official gold file or its folder; for rows the benchmark.",
)
@comma_list("--names", metavar="A,B", help="Names of several files in tables. [default: their own]")
@click.option("--set", "given", multiple=True, metavar="NAME=VALUE", help="An option of the scorer; repeatable.")
@click.option("--json", "json_out", metavar="FILE", help="Write the scores as JSON; - prints them instead of tables.")
@click.option("--latex", metavar="FILE", help="Write a LaTeX table; - prints it instead of tables.")
@click.option("--plot", metavar="FILE", type=click.Path(path_type=Path), help="Draw the scores: .svg, .png or .pdf.")
@click.option(
    "--out", metavar="RUN", type=click.Path(path_type=Path), help="Write a run folder for `d2e compare`; for one file."
)
@click.option(
    "--template",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Score nothing; write the predictions file to fill in, .jsonl or .csv.",
)
def score(
    system: str,
    files: tuple[Path, ...],
    more: tuple[Path, ...],
    gold: Path,
    names: str | None,
    given: tuple[str, ...],
    json_out: str | None,
    latex: str | None,
    plot: Path | None,
    out: Path | None,
    template: Path | None,
) -> None:
    """Score PREDICTIONS of SYSTEM as its paper does, or of rows as `d2e eval` does, without a model or torch.

    PREDICTIONS are files in the official format, flat JSONL or CSV, or run folders. Several are compared: paired
    differences to the first, with intervals and p-values. File formats: docs/reference/systems.md.

    \b
    Examples:
      d2e score wiqa --gold data/raw/wiqa --template answers.csv
      d2e score wiqa a.jsonl b.csv --gold data/raw/wiqa --names A,B --latex t.tex
      d2e score crepe runs/d2e --gold data/raw/crepe --json -
      d2e score rows outputs.jsonl --gold data/habit --out runs/theirs
    """
    from eval.compare.verdicts import measures_latex  # imports pandas
    from eval.systems.run import compare_scored, score_files, write_template

    files += more
    printed = _STDOUT in (json_out, latex)
    if template is not None:
        if files:
            raise UserError(f"--template {template}: writes a file to fill in; expected no PREDICTIONS")
        click.echo(f"wrote {template} ({write_template(system, gold, given, template)})")
        return
    _check(files, system, json_out, latex, out)
    if plot is not None:
        from eval.pages.report.plots import write_plot  # matplotlib takes a second

        check_ending(f"--plot {plot}", plot.suffix.lower(), PICTURES)
    scored = score_files(system, files, gold, given, None if names is None else names.split(","))
    for warning in (warning for file in scored for warning in file.result.warnings):
        warn(warning)
    first, several = scored[0], len(scored) > 1
    compared = several or latex is not None or plot is not None
    comparison, text = compare_scored(scored) if compared else (None, "")
    if not printed:
        click.echo(text if several else first.result.text)
    if json_out is not None:
        content = first.result.scores
        if several and comparison is not None:
            content = {
                "comparison": comparison.to_json(),
                "scores": {file.label: file.result.scores for file in scored},
            }
        _give(json_out, json.dumps(content, indent=2, ensure_ascii=False) + "\n", "scores")
    if comparison is not None and latex is not None:
        _give(latex, measures_latex(comparison), "table", err=printed)
    if comparison is not None and plot is not None:
        write_plot(comparison, plot)
        click.echo(f"plot: {plot}", err=printed)
    if out is not None:
        click.echo(f"scores and predictions: {first.write(out)}", err=printed)


def _check(files: tuple[Path, ...], system: str, json_out: str | None, latex: str | None, out: Path | None) -> None:
    """Refuse calls before anything is scored."""
    if not files:
        raise UserError(
            "no PREDICTIONS",
            remedy=f"name a file, or write one to fill in: d2e score {system} --template FILE --gold …",
        )
    if out is not None and len(files) > 1:
        raise UserError(f"--out {out}: got {len(files)} files of predictions; expected one", "score them one by one")
    if json_out == latex == _STDOUT:
        raise UserError("--json - and --latex -: only one can be printed", remedy="write one of them to a file")


def _give(target: str, text: str, noun: str, *, err: bool = False) -> None:
    """Print a text if its target is -, else write it."""
    if target == _STDOUT:
        click.echo(text, nl=False)
    else:
        write_whole(Path(target), text)
        click.echo(f"{noun}: {target}", err=err)
