"""Decode a benchmark with a model, score it, and keep both the predictions and the scores."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from d2e_sft.data.built import taggers, tags_of_another, warn_if_changed
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.sample import BAD_ROWS_FILE, BadRow, EventSample, read_samples, write_bad_rows
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import sha256_of
from d2e_sft.util.terminal import warn
from eval.run.benchmark import (
    BenchmarkFile,
    BenchmarkRows,
    choose_per_group,
    locate_benchmark,
    results_name,
    with_candidates,
)
from eval.run.demonstrations import Demonstrations, load_demonstrations
from eval.run.journal import WITH_CONTEXT, WITHOUT_CONTEXT, PassFiles
from eval.run.options import EvalConfig, EvalOptions, resolve_options, warn_of_idle_options
from eval.run.passes import EvaluatedModel, LoadEngine, run_pass
from eval.run.processes import join_processes
from eval.run.task import SampleTask, sample_task
from eval.score.predictions import read_predictions
from eval.score.scores import RunScores, ScoredBenchmark, score_predictions, write_scores


def evaluate_model(
    model: str,
    benchmark: str | Path | BenchmarkFile,
    *,
    run: Path,
    options: EvalOptions,
    load: LoadEngine | None = None,
) -> RunScores:
    """Decode and score a benchmark; returns the scores.

    The files are `run/eval/BENCHMARK/{predictions.jsonl,scores.json}`. In other settings than zero-shot and other
    forms than chat the folder is called `BENCHMARK-SETTING-FORM`. A pass without context writes
    `without_context.jsonl` there, and no scores. With several processes each decodes its share.

    Args:
        model: A run folder, one of its checkpoints, another checkpoint folder, a Hub name or `builtin:…`. For an
            endpoint, the model's name there.
        benchmark: A folder of `d2e data build`, a file of EventSample rows, or a result of `locate_suite`.
        load: Loads the engine; with `shared_engine` several calls use the same.

    Raises:
        UserError: no such model or benchmark, bad rows, a prompt that exceeds the model's context, an engine that
            stops, or results of another model or other options in the folder.
    """
    config = resolve_options(model, options)
    benchmark = benchmark if isinstance(benchmark, BenchmarkFile) else locate_benchmark(benchmark)
    bad: list[BadRow] = []
    samples = read_samples(benchmark.file, bad_rows=bad if options.skip_bad else None)
    askable = with_candidates(samples, benchmark.file) if options.answer == "likelihood" else samples
    chosen = choose_per_group(askable, config.max_samples, options.seed)
    without_options = len(samples) - len(askable)
    rows = BenchmarkRows(samples, chosen, bad, sha256_of(benchmark.file), without_options=without_options)
    wording, shown = load_prompt_set(config.prompt_set, config.form).in_setting(options.setting), None
    if options.setting == "few_shot":
        shown = load_demonstrations(benchmark, chosen, samples, path=options.demonstrations, seed=options.seed)
        wording = wording.in_setting(options.setting, shown.of)
    subset = f"{config.max_samples} a group, seed {options.seed}" if rows.is_subset else None
    facts = {
        "demonstrations": None if shown is None else f"sha256 {shown.digest()}",
        "bench": f"sha256 {_digest(samples)} without tags, {len(samples)} rows",
        "subset": subset,
    }
    task = row_task(chosen, wording, config, facts)
    name = results_name(benchmark.name, options.setting, config.form, options.answer)
    files = PassFiles(run / "eval" / name, WITHOUT_CONTEXT if options.without_context else WITH_CONTEXT)
    evaluated = EvaluatedModel(model, config, join_processes(config.engine), load)
    evaluation = RowEvaluation(evaluated, benchmark, rows, task, files, shown)
    evaluated.processes.broadcast_from_main(evaluation.warn)
    record = run_pass(task, files, evaluated).record
    return evaluated.processes.broadcast_from_main(lambda: evaluation.score(record))


def _digest(samples: list[EventSample]) -> str:
    """Return the digest of rows without their tags: with other ones the same answers are scored again."""
    lines = (sample.model_dump_json(exclude={"subset", "habit", "meta"}) for sample in samples)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def row_task(samples: list[EventSample], wording: Any, config: EvalConfig, facts: dict[str, Any]) -> SampleTask:
    """The task of `d2e eval` and `d2e predict`; `facts` say which rows they are.

    UserError for an unknown `--decoder`, or one that contrasts while no sample has a context.
    """
    options = config.options
    if options.decoder is not None and config.decoding.needs_imagined:
        from d2e_sft.decoding.decoders import decoder_of  # imports torch

        if config.engine == "vllm":
            from d2e_sft.vllm.pairing import check_decoder

            check_decoder(options.decoder)
        decoder_of(config.decoding)
        if samples and not any(sample.context.strip() for sample in samples):
            raise UserError(
                f"--decoder {options.decoder}: it contrasts the prompts with and without context, and none of the "
                f"{len(samples)} samples has a context; expected plain",
                remedy="drop --decoder, or evaluate on samples with contexts",
            )
    return sample_task(
        samples,
        wording,
        config.decoding,
        likelihood=options.answer == "likelihood",
        without_context=options.without_context,
        truncate=options.overlong == "truncate_context",
        setting=options.setting,
        normalise=options.normalise,
        about={
            "setting": options.setting,
            "prompt_set": f"{wording.name}, sha256 {wording.digest()}",
            **facts,
        },
    )


@dataclass(frozen=True)
class RowEvaluation:
    """A model on a benchmark: what is decided before a model is loaded; few-shot prompts show `demonstrations`."""

    evaluated: EvaluatedModel
    benchmark: BenchmarkFile
    rows: BenchmarkRows
    task: SampleTask
    files: PassFiles
    demonstrations: Demonstrations | None

    @property
    def empty_contexts(self) -> int:
        return sum(not sample.context.strip() for sample in self.rows.chosen)

    def warn(self) -> None:
        """Warn of options that have no effect, and of what makes the scores less than they seem."""
        evaluated, benchmark, rows, chosen = self.evaluated, self.benchmark, self.rows, len(self.rows.chosen)
        warn_of_idle_options(evaluated.model, evaluated.config)
        if benchmark.lacking:
            warn(f"{benchmark.file.parent} is incomplete, without {', '.join(benchmark.lacking)}")
        warn_if_changed(benchmark.file, rows.sha256)
        if self.task.likelihood and rows.without_options:
            warn(
                f"{rows.without_options} of {len(rows.all)} rows ask for free text (qa) and are left out, as they "
                "have no options to score"
            )
        count = sum(len(sample.answers) > 1 for sample in rows.chosen)
        if self.task.likelihood and count:
            warn(
                f"{count} of {chosen} samples have several correct options (mcq); the answer is the likeliest "
                "option, and acc is whether it is one of them"
            )
        if self.empty_contexts and evaluated.config.decoding.needs_imagined:
            warn(f"{self.empty_contexts} of {chosen} samples have no context and are decoded plainly")
        if warning := tags_of_another(taggers(rows.chosen), evaluated.model):
            warn(warning)

    def score(self, record: dict[str, Any]) -> RunScores:
        files = self.files
        write_bad_rows(self.rows.bad, files.folder / BAD_ROWS_FILE)
        scored = score_predictions(read_predictions(files.predictions), seed=self.evaluated.config.options.seed)
        parts = {name: getattr(scored, name) for name in scored.model_fields_set}
        scores = RunScores(**self._facts(record), **parts)
        if files.stem == WITH_CONTEXT:
            write_scores(files.folder, scores.content(), [files.predictions.name])
        return scores

    def _facts(self, record: dict[str, Any]) -> dict[str, Any]:
        """What was decoded and how, by the fields of `EvaluationFacts`."""
        config, rows, benchmark, shown = self.evaluated.config, self.rows, self.benchmark, self.demonstrations
        options, decoding, likelihood = config.options, config.decoding, self.task.likelihood
        scored = {"answer": options.answer, "normalise": options.normalise, "without_options": rows.without_options}
        subset = {"per_group": config.max_samples, "seed": options.seed, "of": len(rows.all)}
        name, tagged_by = self.files.folder.name, taggers(rows.chosen)
        recorded = ("engine", "engine_counts", "truncated", "resumed", "seconds", "environment")
        return {
            "model": self.evaluated.model,
            **(scored if likelihood else {}),
            **decoding.record(),
            "setting": options.setting,
            "form": config.form,
            "prompt_set": self.task.wording.names_for(rows.chosen),
            "prompt_set_given": config.prompt_set,
            "max_new_tokens": None if likelihood else decoding.max_new_tokens,
            "bench": ScoredBenchmark(name=name, file=str(benchmark.file), sha256=rows.sha256, suite=benchmark.suite),
            "lacking": list(benchmark.lacking),
            "subset": subset if rows.is_subset else None,
            "demonstrations": None if shown is None else {**shown.describe(), "seed": options.seed},
            "bad_rows": len(rows.bad),
            "empty_contexts": self.empty_contexts,
            **({"tagged_by": list(tagged_by)} if tagged_by else {}),
            **{key: record[key] for key in recorded},
            "timed": record.get("timed", {}),  # records of earlier versions have none
        }
