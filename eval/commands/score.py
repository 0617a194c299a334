"""`d2e score`: a scorer alone, a system's or that of rows, on a file of predictions."""

from __future__ import annotations

import json
from pathlib import Path

import click

from d2e_sft.util.errors import UserError
from d2e_sft.util.files import write_json
from eval.compare.narrow_tables import narrow_scores
from eval.compare.subset_tables import subset_table
from eval.systems.registry import SYSTEM_NAMES, load_system
from eval.systems.rows import ROWS, RowsOptions, score_rows
from eval.systems.system import parse_options


@click.command("score")
@click.argument("system", type=click.Choice([ROWS, *SYSTEM_NAMES]))
@click.option(
    "--predictions",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE|DIR",
    help="Predictions in the official format, or a run's folder; of rows JSONL with id, output and, where needed, "
    "dataset.",
)
@click.option(
    "--gold",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE|DIR",
    help="The official gold file, or the folder that holds it; of rows the benchmark.",
)
@click.option("--set", "given", multiple=True, metavar="NAME=VALUE", help="An option of the scorer; repeatable.")
@click.option("--json", "json_out", metavar="FILE", help="Write the scores as JSON; - prints them in place of tables.")
@click.option("--out", metavar="RUN", type=click.Path(path_type=Path), help="rows: a run folder for `d2e compare`.")
def score(
    system: str, predictions: Path, gold: Path, given: tuple[str, ...], json_out: str | None, out: Path | None
) -> None:
    """Score predictions of SYSTEM as its paper does, or of rows as `d2e eval` does; no model is needed.

    What a file of predictions looks like, three lines for each SYSTEM: docs/systems.md.

    \b
    Examples:
      d2e score crepe --predictions predictions.json --gold data_dev_v2.json --json -
      d2e score crepe --predictions runs/d2e --gold data/raw/crepe
      d2e score rows --predictions outputs.jsonl --gold data/habit --out runs/theirs
    """
    if system == ROWS:
        _score_rows(predictions, gold, given, json_out, out)
        return
    if out is not None:
        raise UserError(f"--out {out}: is for {ROWS}, not for {system}", remedy="use --json FILE")
    chosen = load_system(system)
    result = chosen.scored(predictions, gold, parse_options(chosen.score_options, given, system))
    for warning in result.warnings:
        click.echo(f"warning: {warning}", err=True)
    if json_out == "-":
        click.echo(json.dumps(result.scores, indent=2, ensure_ascii=False))
        return
    click.echo("\n\n".join(table.markdown() for table in result.tables))
    if json_out is not None:
        write_json(Path(json_out), result.scores)
        click.echo(f"scores: {json_out}")


def _score_rows(predictions: Path, gold: Path, given: tuple[str, ...], json_out: str | None, out: Path | None) -> None:
    options = parse_options(RowsOptions, given, ROWS)
    assert isinstance(options, RowsOptions)
    scored = score_rows(predictions, gold, options)
    if json_out == "-":
        click.echo(json.dumps(scored.scores.content(), indent=2, ensure_ascii=False))
    else:
        click.echo("\n\n".join(filter(None, [narrow_scores(scored.scores), subset_table(scored.scores)])))
        if scored.left_out:
            click.echo(f"rows without an output, left out: {scored.left_out:,}")
        if json_out is not None:
            write_json(Path(json_out), scored.scores.content())
            click.echo(f"scores: {json_out}")
    if out is not None:
        click.echo(f"scores and predictions: {scored.write(out)}", err=json_out == "-")
