"""Decode a benchmark with a model, score it, and keep both the predictions and the scores.

options.py        what the call asks for, and the recipe's defaults
benchmark.py      where the rows are      demonstrations.py   what few-shot prompts show
fingerprint.py    what outputs depend on  engines/            who decodes
decoder_passes.py several decoders in one call
journal.py        the pass itself         journal_files.py    what it keeps on disk
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from d2e_sft.data.built import warn_if_changed
from d2e_sft.data.prompts import SettingPrompts, load_prompt_set
from d2e_sft.data.sample import BAD_ROWS_FILE, BadRow, EventSample, read_samples, write_bad_rows
from d2e_sft.decoding.decoders import decoder_of
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import sha256_of, write_json
from d2e_sft.util.terminal import warn
from d2e_sft.vllm.pairing import check_decoder
from eval.run.benchmark import Benchmark, BenchmarkRows, choose_per_group, locate_benchmark, with_candidates
from eval.run.demonstrations import Demonstrations, load_demonstrations
from eval.run.engines.choose import LoadEngine, identity_of, make_engine
from eval.run.fingerprint import fingerprint
from eval.run.journal import CompletedPass, DecodingPass
from eval.run.journal_files import WITH_CONTEXT, WITHOUT_CONTEXT, PassFiles
from eval.run.options import EvalConfig, EvalOptions, resolve_options, warn_of_idle_options
from eval.run.processes import join_processes
from eval.run.task import sample_task
from eval.score.likelihood import score_likelihoods
from eval.score.predictions import write_predictions
from eval.score.scores import SCORES_FILE, RunScores, ScoredBenchmark, score_predictions
from eval.score.scoring import score_output


@dataclass(frozen=True)
class Evaluation:
    """One pass over a benchmark, with all that is decided before a model is loaded."""

    model: str
    benchmark: Benchmark
    rows: BenchmarkRows
    config: EvalConfig
    wording: SettingPrompts
    demonstrations: Demonstrations | None
    files: PassFiles

    @property
    def empty_contexts(self) -> int:
        """How many samples are decoded plainly, since they have no context."""
        return sum(not sample.context.strip() for sample in self.rows.chosen)


def evaluate_model(
    model: str,
    benchmark: str | Path | Benchmark,
    *,
    run: Path,
    options: EvalOptions,
    load_engine: LoadEngine = make_engine,
) -> RunScores:
    """Decode and score a benchmark; writes `run/eval/BENCHMARK/{predictions.jsonl,scores.json}`.

    In other settings than zero-shot the folder is called `BENCHMARK-SETTING`. A pass without context writes
    `without_context.jsonl` there, and no scores. On several processes each decodes its share, and the main one merges.

    Args:
        model: a run folder, one of its checkpoints, another checkpoint folder, a Hub name or `builtin:…`; for an
            endpoint its name of the model.
        benchmark: a folder that `d2e data build` wrote (its test rows are used), one file of EventSample rows, or what
            `locate_suite` found.
        run: the run folder that keeps the results.
        load_engine: one that keeps its engine serves several calls.

    Returns:
        the content of `scores.json`; in a pass without context what it would be.

    Raises:
        UserError: no such model or benchmark, bad rows, a prompt that exceeds the model's context, an engine that
            cannot go on, or results of another model or other options in the folder.
    """
    evaluation = _prepare(model, benchmark, run, options)
    config, rows = evaluation.config, evaluation.rows
    processes = join_processes(config.engine)
    if processes.is_main:
        _warn(evaluation)
    task = sample_task(
        rows.chosen,
        evaluation.wording,
        config.decoding,
        likelihood=options.answer == "likelihood",
        without_context=options.without_context,
        truncate=options.overlong == "truncate_context",
    )
    return DecodingPass(
        task,
        evaluation.files,
        processes,
        fingerprint=lambda: fingerprint(
            identity_of(model, config), config, rows, evaluation.wording.prompt_set, evaluation.demonstrations
        ),
        load_engine=lambda: load_engine(model, config, processes),
        overwrite=options.overwrite,
        accept_edited=options.accept_edited,
    ).run(lambda completed: _write(evaluation, completed))


def _prepare(model: str, benchmark: str | Path | Benchmark, run: Path, options: EvalOptions) -> Evaluation:
    config = resolve_options(model, options)
    benchmark = benchmark if isinstance(benchmark, Benchmark) else locate_benchmark(benchmark)
    bad: list[BadRow] = []
    samples = read_samples(benchmark.file, bad_rows=bad if options.skip_bad else None)
    askable = with_candidates(samples, benchmark.file) if options.answer == "likelihood" else samples
    chosen = choose_per_group(askable, config.max_samples, options.seed)
    rows = BenchmarkRows(samples, chosen, bad, sha256_of(benchmark.file), without_options=len(samples) - len(askable))
    check_contrast(config, chosen)
    prompt_set = load_prompt_set(config.prompt_set)
    prompt_set.digest(options.setting)  # a set without this setting is refused before anything else is read
    shown = None
    wording = SettingPrompts(prompt_set, options.setting)
    if options.setting == "few_shot":
        shown = load_demonstrations(benchmark, chosen, samples, given=options.demonstrations, seed=options.seed)
        wording = SettingPrompts(prompt_set, options.setting, shown.of)
    parts = (benchmark.name, options.setting, options.answer)
    name = "-".join(part for part in parts if part not in ("zero_shot", "generate"))
    files = PassFiles(run / "eval" / name, WITHOUT_CONTEXT if options.without_context else WITH_CONTEXT)
    return Evaluation(model, benchmark, rows, config, wording, shown, files)


def check_contrast(config: EvalConfig, samples: Sequence[EventSample]) -> None:
    """Before a model is loaded: a decoder that was asked for has to be there, and to have contexts to read."""
    if config.options.decoder is None or not config.decoding.needs_imagined:
        return
    if config.engine == "vllm":
        check_decoder(config.options.decoder)
    decoder_of(config.decoding)
    if samples and not any(sample.context.strip() for sample in samples):
        raise UserError(
            f"--decoder {config.options.decoder}: it contrasts the prompts with and without context, and none of the "
            f"{len(samples)} samples has a context; expected plain",
            remedy="drop --decoder, or evaluate on samples with contexts",
        )


def _warn(evaluation: Evaluation) -> None:
    benchmark, empty = evaluation.benchmark, evaluation.empty_contexts
    if benchmark.lacking:
        lacking = ", ".join(benchmark.lacking)
        warn(f"{benchmark.file.parent} is incomplete, it lacks {lacking}")
    warn_if_changed(benchmark.file, evaluation.rows.sha256)
    warn_of_idle_options(evaluation.config)
    if evaluation.config.options.answer == "likelihood":
        _warn_of_options(evaluation.rows)
    if empty and evaluation.config.decoding.needs_imagined:
        warn(f"{empty} of {len(evaluation.rows.chosen)} samples have no context and are decoded plainly")


def _warn_of_options(rows: BenchmarkRows) -> None:
    if rows.without_options:
        warn(
            f"{rows.without_options} of {len(rows.all)} rows ask for free text (qa) and are left out, as they have no "
            "options to score"
        )
    several = sum(len(sample.answers) > 1 for sample in rows.chosen)
    if several:
        warn(
            f"{several} of {len(rows.chosen)} samples have several correct options (mcq); the likeliest alone is the "
            "answer, and acc asks whether it is one of them"
        )


def _write(evaluation: Evaluation, completed: CompletedPass) -> RunScores:
    """Score the outputs; write predictions, scores and the rows that were left out."""
    files, rows, wording = evaluation.files, evaluation.rows, evaluation.wording
    write_bad_rows(rows.bad, files.folder / BAD_ROWS_FILE)
    options = evaluation.config.options
    if options.answer == "likelihood":
        predictions = [
            score_likelihoods(sample, answer.scores or [], wording, options.normalise)
            for sample, answer in zip(rows.chosen, completed.answers, strict=True)
        ]
    else:
        predictions = [
            score_output(sample, output, wording.marker(sample.format), options.setting)
            for sample, output in zip(rows.chosen, completed.outputs, strict=True)
        ]
    scored = score_predictions(predictions, seed=evaluation.config.options.seed)
    parts = {name: getattr(scored, name) for name in scored.model_fields_set}
    scores = RunScores(**_facts(evaluation, completed.record), **parts)
    write_predictions(predictions, files.predictions)
    if files.stem == WITH_CONTEXT:
        write_json(files.folder / SCORES_FILE, scores.content())
    return scores


def _facts(evaluation: Evaluation, record: dict[str, Any]) -> dict[str, Any]:
    """What was decoded and how, by the fields of `EvaluationFacts`."""
    config, rows, benchmark = evaluation.config, evaluation.rows, evaluation.benchmark
    options, decoding, shown = config.options, config.decoding, evaluation.demonstrations
    subset = {"per_group": config.max_samples, "seed": options.seed, "of": len(rows.all)}
    return {
        "model": evaluation.model,
        **_answered_by(evaluation),
        **decoding.record(),
        "setting": options.setting,
        "prompt_set": evaluation.wording.prompt_set.name,
        "prompt_set_given": config.prompt_set,
        "max_new_tokens": None if options.answer == "likelihood" else decoding.max_new_tokens,
        "bench": ScoredBenchmark(
            name=evaluation.files.folder.name, file=str(benchmark.file), sha256=rows.sha256, suite=benchmark.suite
        ),
        "lacking": list(benchmark.lacking),
        "subset": subset if rows.is_subset else None,
        "demonstrations": None if shown is None else {**shown.describe(), "seed": options.seed},
        "bad_rows": len(rows.bad),
        "empty_contexts": evaluation.empty_contexts,
        **{key: record[key] for key in ("engine", "engine_counts", "truncated", "resumed", "seconds", "environment")},
    }


def _answered_by(evaluation: Evaluation) -> dict[str, Any]:
    """How options were scored, where nothing was generated; other results do not say so."""
    options = evaluation.config.options
    if options.answer == "generate":
        return {}
    left_out = evaluation.rows.without_options
    return {"answer": options.answer, "normalise": options.normalise, "without_options": left_out}
