"""Checks of a `d2e eval` call, its launch on several processes, and its judge."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from d2e_sft.data.sample import read_samples
from d2e_sft.judge.judge import Judge
from d2e_sft.judge.options import JudgeOptions
from d2e_sft.util.errors import UserError, did_you_mean
from d2e_sft.util.terminal import filled
from eval.run.benchmark import SUITES
from eval.systems.registry import SYSTEM_NAMES

_OF_ROWS = {"setting": "zero_shot", "prompt_set": None, "overlong": "error", "skip_bad": False}  # option → default
_BY_LIKELIHOOD = {"normalise": "none", "tokenizer": None}


def check_call(
    bench: str | None, suite: str | None, data: Path | None, given: tuple[str, ...], options: dict[str, Any]
) -> None:
    """Check that the options of a call go together.

    Args:
        given: of `--set`.

    Raises:
        UserError: they do not.
    """
    system = bench if bench in SYSTEM_NAMES else None
    hint = did_you_mean(str(bench), SYSTEM_NAMES) or did_you_mean(str(bench), SUITES).replace("mean", "mean --suite")
    systems_own = f"concerns PIPER's prompts and rows, and {system} has its own"
    by_likelihood = "concerns options by likelihood, and answers are generated"

    def given_of(defaults: dict[str, Any]) -> list[str]:
        return [f"--{name.replace('_', '-')}" for name, default in defaults.items() if options[name] != default]

    for is_given, message, remedy in (
        (
            (bench is None) == (suite is None),
            f"expected either --bench or --suite, got {'both' if bench is not None else 'neither'}",
            f"give a folder (--bench data/mini) or a suite (--suite {' or '.join(SUITES)})",
        ),
        (
            bench is not None and system is None and not Path(bench).exists(),
            f"benchmark {bench!r}: no such file or folder, and no system or suite.{hint}",
            f"give a folder written by `d2e data build`, or one of {', '.join(SYSTEM_NAMES)}",
        ),
        (
            data is not None and suite is None and system is None,
            f"--data {data}: is for suites and systems; --bench gives a path",
            "drop it",
        ),
        (
            bool(given) and system is None,
            f"--set {''.join(given[:1])}: is an option of a system, and --bench names none",
            f"add --bench {' or '.join(SYSTEM_NAMES)}, or drop it",
        ),
        *(
            (system is not None, f"{flag} with --bench {system}: {systems_own}", "drop it, or see --set")
            for flag in given_of(_OF_ROWS)
        ),
        *(
            (options["answer"] == "generate", f"{flag}: {by_likelihood}", "drop it, or add --answer likelihood")
            for flag in given_of(_BY_LIKELIHOOD)
        ),
        (
            options["demonstrations"] is not None and options["setting"] != "few_shot",
            f"--demonstrations with --setting {options['setting']}, whose prompts show none; expected few_shot",
            "drop it, or add --setting few_shot",
        ),
    ):
        if is_given:
            raise UserError(message, remedy)


def launch_if_asked(launcher: str | None, processes: int | None, engine: str) -> None:
    """With `--launch`, start this command line again on several processes, and exit with their status.

    Raises:
        UserError: the launcher or the engine does not support it.
    """
    if launcher is None:
        if processes is not None:
            raise UserError(f"--processes {processes}: needs --launch", "add --launch ddp")
        return
    from d2e_sft.train.launch import launch, launch_command

    if launcher != "ddp":
        raise UserError(
            f"--launch {launcher}: every process gets a whole model and a share of the rows; expected ddp",
            remedy="use --launch ddp; for a model that needs several devices use --engine vllm --tensor-parallel N",
        )
    if engine in ("vllm", "openai"):
        raise UserError(
            f"--launch {launcher} with --engine {engine}: it shares its work itself",
            remedy="use --tensor-parallel N" if engine == "vllm" else "use --concurrency N",
        )
    context = click.get_current_context()
    arguments = [str(context.command.name)]
    for parameter in context.command.params:
        name = parameter.name or ""
        is_given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if name in ("launcher", "processes") or not is_given:
            continue
        value = context.params[name]
        if isinstance(parameter, click.Option):
            for one in value if parameter.multiple else [value]:
                arguments += [parameter.opts[0]] if parameter.is_flag else [parameter.opts[0], str(one)]
        else:
            arguments.append(str(value))
    sys.exit(launch(launch_command(launcher, arguments, module="d2e_sft.cli", processes=processes)))


def judge_run(run: Path, bench: str, asked: Judge, options: JudgeOptions) -> None:
    """Judge a run's answers on a benchmark, and print how many are supported and correct."""
    from eval.compare.compare import compare_runs
    from eval.compare.faithfulness import JUDGED_FILE, judge_answers
    from eval.compare.runs import load_runs
    from eval.compare.tables import faithfulness_tables

    [scored] = load_runs([run], bench)
    verdicts = judge_answers(scored, asked, options)
    for table in faithfulness_tables(compare_runs([scored]), words=False):
        click.echo(f"\n{table.terminal()}")
    if without := verdicts.count(None):
        click.echo(f"answers without a verdict in the requested form: {without}")
    click.echo(filled(asked.usage.describe()))
    click.echo(f"wrote verdicts with reasons: {scored.folder / JUDGED_FILE}")


def check_judge_call(bench: str | None, launcher: str | None, options: dict[str, Any]) -> None:
    """Check the options of `d2e eval` for ones that --judge does not support.

    Raises:
        UserError: there is one.
    """
    if bench in SYSTEM_NAMES:
        raise UserError(
            f"--judge with --bench {bench}: its paper's scorer scores it; expected rows of format qa or chat",
            "drop it",
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
    if not any(
        sample.format in ("qa", "chat") and sample.context.strip() for sample in read_samples(file, bad_rows=[])
    ):
        raise UserError(
            f"--judge {judge.backend}: {file} has no row of format qa or chat with a context, and a judge reads free "
            "answers",
            "drop --judge; other answers are scored by EM and F1, and `d2e errors --judge` sorts the wrong ones",
        )
