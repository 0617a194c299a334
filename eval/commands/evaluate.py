"""`d2e eval`."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from d2e_sft.config.decoding import MAX_ALPHA, given_decoder
from d2e_sft.config.options import OneOf, decoder_option
from d2e_sft.data.chat_template import FORMS
from d2e_sft.data.sample import BAD_ROWS_FILE, read_samples
from d2e_sft.judge.judge import Judge, make_judge
from d2e_sft.judge.options import JudgeOptions, judge_options
from d2e_sft.util.errors import UserError, did_you_mean
from d2e_sft.util.signals import on_sigterm
from d2e_sft.util.terminal import filled
from eval.commands.eval_options import COMMON, eval_options, launch_if_asked, launch_options
from eval.run.benchmark import SUITES, locate_benchmark, locate_suite
from eval.run.options import EvalOptions, refuse_conflicts
from eval.systems import SYSTEM_NAMES, is_system, load_benchmark

if TYPE_CHECKING:
    from d2e_sft.util.table import Table
    from eval.score.scores import RunScores

_PAPER = "paper"
_OF_ROWS, _BY_LIKELIHOOD = ("setting", "prompt_set", "overlong", "skip_bad"), ("normalise", "tokenizer")


@click.command("eval")
@click.argument("model")
@click.option(
    "--bench",
    metavar="PATH|SYSTEM",
    help=f"A folder of `d2e data build`, a file of rows, {', '.join(SYSTEM_NAMES)}, or your own, module:Class.",
)
@click.option("--suite", type=click.Choice(SUITES), help="Instead of --bench: a suite of `d2e data build --suite`.")
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder of suites [data/SUITE], or of a system's official files [data/raw/SYSTEM].",
)
@click.option("--set", "given", multiple=True, metavar="NAME=VALUE", help="An option of the system; repeatable.")
@click.option(
    "--out",
    "outs",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Run folder for the results. [default: MODEL's own] For several decoders: one each, or a common beginning.",
)
@click.option(
    "--form",
    type=OneOf((*FORMS, _PAPER)),
    help="Turns of a chat; one_turn: demonstrations and question in one turn; or completion: one text that is "
    "continued, for base models without a chat template; paper: as PIPER's, chat or for few_shot one turn without a "
    "response form. [default: as trained, else chat]",
)
@decoder_option("How both views give the next token (repeatable)", "decoders", multiple=True)
@eval_options(*(name for name in COMMON if name != "form"))
@judge_options
@launch_options
def evaluate(
    model: str,
    *,
    bench: str | None,
    suite: str | None,
    data: Path | None,
    given: tuple[str, ...],
    outs: tuple[Path, ...],
    decoders: tuple[str, ...],
    launcher: str | None,
    processes: int | None,
    judge: JudgeOptions,
    **options: Any,
) -> None:
    """Decode a benchmark with MODEL and score it.

    MODEL is a run folder, a checkpoint, an adapter, a Hub name, builtin:smollm2-135m-instruct, or with --engine openai
    an endpoint's model name. Predictions and scores are written to RUN/eval/BENCH/, in settings other than zero_shot
    to RUN/eval/BENCH-SETTING/, in other forms than chat to RUN/eval/BENCH-FORM/, with --answer likelihood to
    RUN/eval/BENCH-likelihood/. Every answer is kept at once: after a kill the same command resumes.

    Several --decoder run one after another with the model loaded once, each into its own run folder (RUN-DECODER).
    With --answer likelihood the model reads each prompt once for all of them.

    With --judge a language model then judges the free answers (formats qa and chat): are they supported by the
    context, and do they agree with the gold answer? Finished results are not decoded again.

    \b
    Examples:
      d2e eval runs/d2e-mini --bench data/mini --max-samples 100
      d2e eval runs/sft --bench data/mini --decoder cad:weight=0.5 --out runs/sft-cad
      d2e eval runs/d2e --suite piper --setting few_shot --launch ddp --processes 8
      d2e eval runs/d2e --suite piper --answer likelihood --decoder plain --decoder adacad
      d2e eval gpt-4o --suite piper --engine openai --concurrency 16
      d2e eval HuggingFaceTB/SmolLM2-135M --suite piper --setting few_shot --form completion
      d2e eval runs/support --bench data/support --judge openai --judge-model gpt-4o
    """
    system = bench if is_system(bench) else None
    _check_benchmark(bench, suite)
    refuse_together(click.get_current_context().params)
    if options["form"] == _PAPER:
        few = options["setting"] == "few_shot"
        options["form"] = "one_turn" if few else "chat"
        options["prompt_set"] = options["prompt_set"] or ("bare" if few else None)
    judge_model = make_judge(judge)
    passes = _run_folders(model, decoders, outs)
    launch_if_asked(launcher, processes, options["engine"])
    is_main = os.environ.get("RANK", "0") == "0"
    with on_sigterm("what is decoded is kept, and the same command resumes"):
        if system is not None:
            from eval.systems.run import evaluate_system

            [(decoder, run)] = passes
            asked_how = EvalOptions(**options, decoder=decoder)
            _, result, folder = evaluate_system(
                model, load_benchmark(system), run=run, data=data, settings=given, options=asked_how
            )
            if is_main:
                click.echo("\n\n".join(table.terminal() for table in result.tables))
                click.echo(f"scores, tables and predictions: {folder}")
            return
        located = locate_suite(suite, data) if suite is not None else locate_benchmark(str(bench))
        if located.name in SYSTEM_NAMES:
            raise UserError(
                f"--bench {bench}: rows in a folder called {located.name}, whose results would share "
                f"{passes[0][1] / 'eval' / located.name} with those of --bench {located.name}",
                f"rename the folder, for example to {located.name}-rows",
            )
        if judge_model is not None:
            _check_free_answers(located.file, judge)
        from eval.run.engines.engine import shared_engine
        from eval.run.evaluate import evaluate_model

        load = None if len(passes) == 1 else shared_engine()
        # Plain decoding comes last, as a contrast computes all states that it needs.
        for decoder, run in sorted(passes, key=lambda item: item[0] == "plain"):
            asked_how = EvalOptions(**options, decoder=decoder)
            scores = evaluate_model(model, located, run=run, options=asked_how, load=load)
            if is_main:
                if len(passes) > 1:
                    click.echo(f"\n== {run}")
                _show(scores, run, options)
                if judge_model is not None:
                    _judge(run, scores.bench.name, judge_model, judge)


def _check_benchmark(bench: str | None, suite: str | None) -> None:
    """Raise UserError unless there is one benchmark."""
    if (bench is None) == (suite is None):
        form = "both" if bench is not None else "neither"
        remedy = f"give a folder (--bench data/mini) or a suite (--suite {' or '.join(SUITES)})"
        raise UserError(f"expected either --bench or --suite, got {form}", remedy)
    if bench is not None and not is_system(bench) and not Path(bench).exists():
        hint = did_you_mean(bench, SYSTEM_NAMES) or did_you_mean(bench, SUITES).replace("mean", "mean --suite")
        raise UserError(
            f"benchmark {bench!r}: no such file or folder, and no system or suite.{hint}",
            f"give a folder written by `d2e data build`, one of {', '.join(SYSTEM_NAMES)}, or module:Class",
        )


def refuse_together(values: dict[str, Any]) -> None:
    """Raise UserError for an unknown decoder, or options that do not go together; `values` are click's parameters."""
    engine, alpha, launcher = (values[name] for name in ("engine", "alpha", "launcher"))
    system = values["bench"] if is_system(values["bench"]) else None
    judged, several = values["judge_backend"] != "rules", len(values["decoders"]) > 1
    by_likelihood, without_context = values["answer"] == "likelihood", values["without_context"]
    of_piper = "concerns PIPER's prompts and rows, and a system has its own"
    scorer = "its paper's scorer scores it; expected rows of format qa or chat"
    generated, drop_one = "a judge reads answers that were generated from contexts", "drop one of the two"
    afterwards = "decode with --launch first; then the same command with --judge asks about what is decoded"
    only_here = "it supports one, and only the engine in this process supports several"
    drop = "give one --decoder, or drop it"
    refuse_conflicts(
        [
            (values["suite"] is None and system is None, "--bench PATH", "it is for suites and systems", "drop it",
             {f"--data {values['data']}": values["data"] is not None}),
            (system is None, "--bench PATH", "it is an option of a system", f"add --bench {' or '.join(SYSTEM_NAMES)}",
             {f"--set {''.join(values['given'][:1])}": bool(values["given"])}),
            (system is not None, f"--bench {system}", of_piper, "drop it, or see --set",
             _changed(_OF_ROWS, values) | {"--form paper": values["form"] == _PAPER}),
            (not by_likelihood, "--answer generate", "it concerns options by likelihood",
             "drop it, or add --answer likelihood", _changed(_BY_LIKELIHOOD, values)),
            (values["setting"] != "few_shot", f"--setting {values['setting']}", "its prompts show none",
             "drop it, or add --setting few_shot", {"--demonstrations": values["demonstrations"] is not None}),
            (system is not None, f"--bench {system}", scorer, "drop it", {"--judge": judged}),
            (without_context, "--without-context", generated, drop_one, {"--judge": judged}),
            (by_likelihood, "--answer likelihood", generated, drop_one, {"--judge": judged}),
            (launcher is not None, f"--launch {launcher}", "one process asks a judge", afterwards,
             {"--judge": judged}),
            (several, "several --decoder", "it has passes of its own", drop,
             {f"--bench {system}": system is not None}),
            (several, "several --decoder", "it reads the answers of one", drop, {"--judge": judged}),
            (several, "several --decoder", only_here, drop, {f"--engine {engine}": engine in ("vllm", "openai")}),
            (several, "several --decoder", "it leaves nothing to contrast", drop,
             {"--without-context": without_context}),
            (several, "several --decoder", "it belongs into the decoder, as d2e:alpha=0.5", drop,
             {f"--alpha {alpha}": alpha is not None}),
        ]
    )  # fmt: skip
    for decoder in values["decoders"]:
        given_decoder(decoder, alpha, MAX_ALPHA)


def _changed(names: Sequence[str], options: dict[str, Any]) -> dict[str, bool]:
    defaults = EvalOptions()
    return {f"--{name.replace('_', '-')}": options[name] != getattr(defaults, name) for name in names}


def _run_folders(model: str, decoders: tuple[str, ...], outs: Sequence[Path]) -> list[tuple[str | None, Path]]:
    """Each decoder with the run folder of its results; None is the default decoder.

    `outs` are the given folders: one per decoder, one that all their names begin with, or none. Raises UserError if
    their number does not fit, or two decoders have the same folder.
    """
    chosen: tuple[str | None, ...] = decoders or (None,)
    folders = outs or [Path(model) if Path(model).is_dir() else Path("runs") / re.sub(r"[^\w.-]+", "-", model)]
    if len(folders) == 1 and len(chosen) > 1:
        names = [re.sub(r"[^\w.]+", "-", str(decoder)).strip("-") for decoder in chosen]
        folders = [folders[0].with_name(f"{folders[0].name}-{name}") for name in names]
    if len(set(folders)) != len(chosen) or len(folders) != len(chosen):
        raise UserError(
            f"{len(set(folders))} folders (--out) for {len(chosen)} decoders; expected one each, or one",
            remedy="give one, which the names of all begin with, and each decoder once",
        )
    return list(zip(chosen, folders, strict=True))


def _check_free_answers(file: Path, judge: JudgeOptions) -> None:
    """Raise UserError, before anything is decoded, if the file has no row for a judge."""
    rows = read_samples(file, bad_rows=[])
    if not any(sample.format in ("qa", "chat") and sample.context.strip() for sample in rows):
        raise UserError(
            f"--judge {judge.backend}: {file} has no row of format qa or chat with a context, and a judge reads free "
            "answers",
            "drop --judge; other answers are scored by EM and F1, and `d2e errors --judge` sorts the wrong ones",
        )


def _judge(run: Path, bench: str, judge: Judge, options: JudgeOptions) -> None:
    """Judge a run's answers on a benchmark, and print how many are supported and correct."""
    from eval.compare.compare import compare_runs
    from eval.compare.judged import JUDGED_FILE, judge_answers
    from eval.compare.runs import load_runs
    from eval.compare.tables import faithfulness_tables

    [scored] = load_runs([run], bench)
    verdicts = judge_answers(scored, judge, options)
    for table in faithfulness_tables(compare_runs([scored]), words=False):
        click.echo(f"\n{table.terminal()}")
    if without := verdicts.count(None):
        click.echo(f"answers without a verdict in the requested form: {without}")
    click.echo(filled(judge.usage.describe()))
    click.echo(f"wrote verdicts with reasons: {scored.folder / JUDGED_FILE}")


def _tables(scores: RunScores, run: Path, *, without_context: bool) -> list[Table]:
    from eval.compare.compare import compare_kinds
    from eval.compare.run_tables import score_tables, subset_tables
    from eval.compare.runs import load_runs
    from eval.compare.tables import kind_tables

    kinds = scores.bench.suite is None and not without_context
    by_kind = kind_tables(compare_kinds(*load_runs([run], scores.bench.name))) if kinds else []
    return [*score_tables(scores), *subset_tables(scores), *by_kind]


def _show(scores: RunScores, run: Path, options: dict[str, Any]) -> None:
    tables = _tables(scores, run, without_context=options["without_context"])
    click.echo("\n\n".join(table.terminal() for table in tables) + "\n")
    folder = run / "eval" / scores.bench.name
    if scores.overall.acc is not None and scores.overall.acc_norm is not None:
        by_sum, by_length = scores.overall.acc.mean, scores.overall.acc_norm.mean
        click.echo(f"likeliest option correct: acc {by_sum:.1%} (sum), acc_norm {by_length:.1%} (sum per character)")
    if scores.subset is not None:
        limit, rows = scores.subset["per_group"], scores.subset["of"]
        cap, all_rows = f"--max-samples {limit}", ""
        if options["max_samples"] is None:
            cap, all_rows = f"eval.max_samples={limit}", f"; --max-samples {rows} --overwrite scores all of them"
        click.echo(f"scored {scores.overall.n:,} of {rows:,} rows ({cap}){all_rows}")
    counts = {
        "rows without options left out": scores.without_options,
        f"bad rows skipped, kept in {BAD_ROWS_FILE} next to the scores": scores.bad_rows,
        "contexts cut to fit the model": scores.truncated,
        "samples without a context": scores.empty_contexts,
    }
    for label, count in counts.items():
        if count:
            click.echo(f"{label}: {count}")
    if "openai" in (scores.engine or ""):
        click.echo("decoded plainly: an endpoint shows no logits that could be subtracted")
    if options["without_context"]:
        click.echo(f"predictions without context, for `d2e errors {run}`: {folder / 'without_context.jsonl'}")
    else:
        click.echo(f"scores and predictions: {folder}")
        if scores.bench.suite in SUITES and scores.answer == "generate":  # as in the paper
            from eval.compare.paper import write_paper_tables

            for path in write_paper_tables(run, folder.name):
                if path.suffix == ".md":
                    text = path.read_text("utf-8")
                    click.echo(f"in the layout of the paper, also as .tex and .json: {path}\n\n{text}")
