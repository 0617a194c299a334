"""`d2e errors`: find out why a run's wrong answers are wrong."""

from pathlib import Path

import click

from d2e_sft.judge.judge import make_judge
from d2e_sft.judge.options import JudgeOptions, judge_options
from d2e_sft.util.errors import UserError
from d2e_sft.util.terminal import filled, folded, say
from eval.compare.decoding import read_without_context
from eval.compare.judged import (
    ErrorPattern,
    error_prompts,
    find_error_patterns,
    read_patterns,
    write_patterns,
)
from eval.compare.runs import load_runs

_BY_RULE = (
    "Estimated by rule, which is not the paper's neglect: an answer is the same without the context if the model did "
    "not use it, or guessed the same. An unrecognised answer is other, and the rest is undecided."
)


@click.command()
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--bench", metavar="NAME", help="Benchmark whose errors to sort. [default: the only one RUN has]")
@click.option(
    "--without-context",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The same model's predictions without the contexts, for the rule. [default: what `d2e eval RUN "
    "--without-context` wrote]",
)
@click.option(
    "--samples", type=click.IntRange(min=0), default=40, show_default=True, help="Wrong answers to show on the page."
)
@judge_options
@click.option("--estimate", is_flag=True, help="Print the number of questions and their cost; ask nothing.")
def errors(
    *, run: Path, bench: str | None, without_context: Path | None, samples: int, judge: JudgeOptions, estimate: bool
) -> None:
    """Sort a run's wrong answers into neglected context, inaccurate position and other (PIPER paper, section 2.2).

    A judge reads context, question, output and answer. Without a judge a rule counts another thing: answers that stay
    the same without the context. Writes error_patterns.json, .png and .html to the folder of the scores.

    Example: d2e errors runs/d2e --judge openai --judge-model gpt-4o --estimate
    """
    [scored] = load_runs([run], bench)
    wrong = [prediction for prediction in scored.predictions.values() if not prediction.right]
    judge_model = make_judge(judge, asking=not estimate)
    if estimate:
        if judge_model is None:
            raise UserError("--estimate without a judge; the rule costs nothing", "name one: --judge openai or local")
        click.echo(folded(f"error patterns: {judge_model.estimate(error_prompts(wrong, judge_model))}"))
        return
    if judge_model is not None and without_context is not None:
        raise UserError("--without-context is for the rule; expected no --judge", "drop one of the two")
    answers = {}
    if judge_model is None and wrong:
        without = read_without_context(scored, wrong, without_context, noun="wrong predictions")
        answers = {key: prediction.answer for key, prediction in without.items()}
    judged = find_error_patterns(wrong, judge_model, without_context=answers)
    if judge_model is not None:
        decided = sum(error.pattern is not ErrorPattern.UNDECIDED for error in judged)
        judge_model.require_usable("error patterns", decided, len(judged))
    written = write_patterns(scored, {(p.dataset, p.id): error for p, error in zip(wrong, judged, strict=True)}, judge)
    patterns = read_patterns(scored)
    assert patterns is not None
    from eval.pages.report.patterns import pattern_table, write_error_report

    click.echo(f"{len(wrong):,} of {len(scored.predictions):,} predictions are wrong\n")
    click.echo(pattern_table([scored], {scored.label: patterns}).terminal())
    say("\n" + filled(_BY_RULE if judge_model is None else judge_model.usage.describe()))
    method = _BY_RULE if judge_model is None else f"Sorted by the judge {judge.model}."
    for file in [written, *write_error_report(scored, patterns, answers, method=method, samples=samples)]:
        click.echo(f"wrote {file}")
