"""`d2e score`: a system's scorer alone, on a file of predictions."""

from __future__ import annotations

import json
from pathlib import Path

import click

from d2e_sft.util.errors import UserError
from d2e_sft.util.files import write_json
from eval.systems.registry import SYSTEM_NAMES, load_system
from eval.systems.system import parse_options


@click.command("score")
@click.argument("system", type=click.Choice(SYSTEM_NAMES))
@click.option(
    "--predictions",
    type=click.Path(path_type=Path),
    required=True,
    help="File of predictions, in the official format.",
)
@click.option("--gold", type=click.Path(path_type=Path), required=True, help="The official gold file.")
@click.option("--set", "given", multiple=True, metavar="NAME=VALUE", help="An option of the scorer; repeatable.")
@click.option("--json", "json_out", metavar="FILE", help="Write the scores as JSON; - prints them in place of tables.")
def score(system: str, predictions: Path, gold: Path, given: tuple[str, ...], json_out: str | None) -> None:
    """Score predictions of SYSTEM as its paper does; no model is needed.

    Example: d2e score crepe --predictions predictions.json --gold data_dev_v2.json --json -
    """
    chosen = load_system(system)
    for option, path in (("--predictions", predictions), ("--gold", gold)):
        if not path.is_file():
            raise UserError(f"{option} {path}: no such file", remedy=f"expected a file of {chosen.title}")
    result = chosen.score(predictions, gold, parse_options(chosen.score_options, given, system))
    if json_out == "-":
        click.echo(json.dumps(result.scores, indent=2, ensure_ascii=False))
        return
    click.echo("\n\n".join(table.markdown() for table in result.tables))
    if json_out is not None:
        write_json(Path(json_out), result.scores)
        click.echo(f"scores: {json_out}")
