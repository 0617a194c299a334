"""`d2e eval --judge`: a language model judges the free answers that were just scored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from d2e_sft.data.sample import read_samples
from d2e_sft.judge.judge import Judge
from d2e_sft.judge.options import JudgeOptions
from d2e_sft.util.errors import UserError
from d2e_sft.util.terminal import filled
from eval.systems.registry import SYSTEM_NAMES


def judge_run(run: Path, bench: str, asked: Judge, options: JudgeOptions) -> None:
    """Judge a run's answers on a benchmark, and print how many are supported and correct."""
    from eval.compare.compare import compare_runs
    from eval.compare.judged_answers import JUDGED_FILE, judge_answers
    from eval.compare.runs import load_runs
    from eval.compare.tables import faithfulness_tables

    [scored] = load_runs([run], bench)
    verdicts = judge_answers(scored, asked, options)
    for table in faithfulness_tables(compare_runs([scored]), words=False):
        click.echo(f"\n{table.terminal()}")
    if without := verdicts.count(None):
        click.echo(f"answers without a verdict in the requested form: {without}")
    click.echo(filled(asked.describe_usage()))
    click.echo(f"wrote verdicts with reasons: {scored.folder / JUDGED_FILE}")


def check_judge_call(bench: str | None, launcher: str | None, options: dict[str, Any]) -> None:
    """Check the options of `d2e eval` for ones that --judge does not support.

    Raises:
        UserError: there is one.
    """
    if bench in SYSTEM_NAMES:
        raise UserError(
            f"--judge with --bench {bench}: its paper's scorer scores it; expected rows of format chat", "drop it"
        )
    if options["without_context"] or options["answer"] == "likelihood":
        flag = "--without-context" if options["without_context"] else "--answer likelihood"
        raise UserError(
            f"--judge with {flag}: a judge reads answers that were generated from contexts", "drop one of the two"
        )
    if launcher is not None:
        raise UserError(
            f"--judge with --launch {launcher}: one process asks a judge",
            "decode with --launch first; then the same command with --judge in its place asks about what is decoded",
        )


def check_free_answers(file: Path, judge: JudgeOptions) -> None:
    """Check, before anything is decoded, that the file has rows for a judge.

    Raises:
        UserError: it has none.
    """
    if not any(sample.format == "chat" and sample.context.strip() for sample in read_samples(file, bad_rows=[])):
        raise UserError(
            f"--judge {judge.backend}: {file} has no row of format chat with a context; a judge reads free answers",
            "drop --judge; other answers are scored by EM and F1, and `d2e errors --judge` sorts the wrong ones",
        )
