"""`d2e errors`: why a run's wrong answers are wrong."""

from __future__ import annotations

import json
from pathlib import Path

import click

from d2e_sft.errors import UserError
from d2e_sft.files import write_whole
from d2e_sft.judge.cli_options import judge_options
from d2e_sft.judge.judge import make_judge
from d2e_sft.judge.options import JudgeOptions
from eval.error_patterns import ErrorPattern, JudgedError, error_prompts, find_error_patterns
from eval.predictions import Prediction, read_predictions
from eval.runs import load_runs
from eval.tables import error_pattern_table

_FILE = "error_patterns.json"


@click.command()
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--bench", metavar="NAME", help="Benchmark whose errors to sort. [default: the only one RUN has]")
@click.option(
    "--without-context",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="predictions.jsonl of the same model on the same samples with empty contexts; the rules need it.",
)
@judge_options
@click.option("--estimate", is_flag=True, help="Say what the judge would be asked and would cost; ask nothing.")
def errors(*, run: Path, bench: str | None, without_context: Path | None, judge: JudgeOptions, estimate: bool) -> None:
    """Sort a run's wrong answers into neglected context, inaccurate position and other (PIPER paper, section 2.2).

    A judge reads context, question, output and answer. Rules alone can only say that an answer which stays the same
    without the context neglects it; all else is undecided. The patterns go to error_patterns.json beside the scores.

    Example: d2e errors runs/d2e --judge openai --judge-model gpt-4o --estimate
    """
    [scored] = load_runs([run], bench)
    wrong = [prediction for prediction in scored.predictions.values() if prediction.exact_match < 1]
    asked = make_judge(judge)
    if estimate:
        if asked is None:
            raise UserError("--estimate without a judge; rules cost nothing", "name one: --judge openai or local")
        click.echo(f"error patterns: {asked.estimate(error_prompts(wrong))}")
        return
    if asked is not None and without_context is not None:
        raise UserError("--without-context is for the rules; expected it without --judge", "drop one of the two")
    answers = None
    if without_context is not None:
        answers = {(p.dataset, p.id): p.answer for p in read_predictions(without_context)}
    judged = find_error_patterns(wrong, asked, without_context=answers)
    click.echo(error_pattern_table(wrong, [error.pattern for error in judged], len(scored.predictions)))
    if asked is not None:
        click.echo(asked.describe_usage())
    else:
        click.echo("by rules: neglect is an upper bound, since the same answer may also be guessed")
    target = scored.path / "eval" / scored.scores.bench.name / _FILE
    write_whole(target, json.dumps(_described(wrong, judged, judge), indent=2, ensure_ascii=False) + "\n")
    click.echo(f"wrote {target}")


def _described(wrong: list[Prediction], judged: list[JudgedError], judge: JudgeOptions) -> dict[str, object]:
    return {
        "judge": judge.model_dump(include={"backend", "model"}),
        "counts": {pattern.value: sum(error.pattern is pattern for error in judged) for pattern in ErrorPattern},
        "errors": [
            {"dataset": p.dataset, "id": p.id, "pattern": error.pattern.value, "reason": error.reason}
            for p, error in zip(wrong, judged, strict=True)
        ],
    }
