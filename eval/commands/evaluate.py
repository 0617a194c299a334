"""`d2e eval`."""

from __future__ import annotations

import math
import re
from pathlib import Path

import click

from d2e_sft.sample import BAD_ROWS_FILE


@click.command("eval")
@click.argument("model")
@click.option("--bench", required=True, help="A folder of `d2e data build`, or a file of EventSample rows.")
@click.option("--out", type=click.Path(path_type=Path), help="Run folder for the results; default: MODEL's own.")
@click.option("--alpha", type=click.FloatRange(min=0, max=1e6), help="Debias ratio; default: as trained, else 0.")
@click.option("--prompt-set", help="Wording; default: as trained, else `default`.")
@click.option("--batch-size", type=click.IntRange(min=1), help="Samples decoded together.")
@click.option("--max-new-tokens", type=click.IntRange(min=1), help="Longest answer, in tokens.")
@click.option("--max-samples", type=click.IntRange(min=1), help="At most so many per dataset × relation × format.")
@click.option(
    "--seed",
    type=click.IntRange(min=0, max=2**32 - 1),
    default=0,
    show_default=True,
    help="Of the subset and the bootstrap.",
)
@click.option("--skip-bad", is_flag=True, help="Keep bad rows in a side file instead of stopping.")
def evaluate(model: str, bench: str, out: Path | None, skip_bad: bool, **options: object) -> None:
    """Decode a benchmark with MODEL and score it.

    MODEL is a run folder, a checkpoint, a Hub name or builtin:smollm2-135m-instruct. Predictions and scores are
    written to RUN/eval/BENCH/.

    Example: d2e eval runs/d2e-mini --bench data/mini --max-samples 100
    """
    from eval.runner import EvalOptions, evaluate_model
    from eval.tables import score_table

    alpha = options["alpha"]
    if isinstance(alpha, float) and not math.isfinite(alpha):
        raise click.BadParameter(f"{alpha} is not a finite number", param_hint="--alpha")
    run = out or (Path(model) if Path(model).is_dir() else Path("runs") / re.sub(r"[^\w.-]+", "-", model))
    scores = evaluate_model(model, bench, run=run, options=EvalOptions(skip_bad=skip_bad, **options))  # type: ignore[arg-type]
    click.echo(score_table(scores))
    if scores["bad_rows"]:
        click.echo(f"bad rows skipped: {scores['bad_rows']}, kept in {BAD_ROWS_FILE} beside the scores")
    click.echo(f"scores and predictions: {run / 'eval' / scores['bench']['name']}")
