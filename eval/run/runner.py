"""Decode a benchmark with a model, score it, and keep both the predictions and the scores."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from d2e_sft.data.bad_rows import BAD_ROWS_FILE, BadRow, write_bad_rows
from d2e_sft.data.built import taggers, tags_of_another, warn_if_changed
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.sample import read_samples
from d2e_sft.util.files import sha256_of
from d2e_sft.util.terminal import warn
from eval.run.benchmark import Benchmark, BenchmarkRows, choose_per_group, locate_benchmark, with_candidates
from eval.run.demonstrations import load_demonstrations
from eval.run.engines.engine import LoadEngine, make_engine
from eval.run.journal import CompletedPass
from eval.run.journal_files import WITH_CONTEXT, WITHOUT_CONTEXT, PassFiles
from eval.run.options import EvalOptions, resolve_options
from eval.run.sample_pass import SamplePass
from eval.score.predictions import write_predictions
from eval.score.scores import RunScores, ScoredBenchmark, score_predictions, write_scores


@dataclass(frozen=True)
class Evaluation(SamplePass):
    """A pass over a benchmark."""

    benchmark: Benchmark = field(kw_only=True)

    @property
    def empty_contexts(self) -> int:
        """Number of samples without context, which are decoded plainly."""
        return sum(not sample.context.strip() for sample in self.rows.chosen)

    def warn(self) -> None:
        """Warn of what makes the scores less than they seem."""
        super().warn()
        benchmark, rows, chosen = self.benchmark, self.rows, len(self.rows.chosen)
        if benchmark.lacking:
            warn(f"{benchmark.file.parent} is incomplete, without {', '.join(benchmark.lacking)}")
        warn_if_changed(benchmark.file, rows.sha256)
        if self.likelihood and rows.without_options:
            warn(
                f"{rows.without_options} of {len(rows.all)} rows ask for free text (qa) and are left out, as they "
                "have no options to score"
            )
        several = sum(len(sample.answers) > 1 for sample in rows.chosen)
        if self.likelihood and several:
            warn(
                f"{several} of {chosen} samples have several correct options (mcq); the answer is the likeliest "
                "option, and acc is whether it is one of them"
            )
        if self.empty_contexts and self.config.decoding.needs_imagined:
            warn(f"{self.empty_contexts} of {chosen} samples have no context and are decoded plainly")
        if other := tags_of_another(taggers(rows.chosen), self.model):
            warn(other)


def evaluate_model(
    model: str, benchmark: str | Path | Benchmark, *, run: Path, options: EvalOptions, load: LoadEngine = make_engine
) -> RunScores:
    """Decode and score a benchmark; writes `run/eval/BENCHMARK/{predictions.jsonl,scores.json}`.

    In other settings than zero-shot and other forms than chat the folder is called `BENCHMARK-SETTING-FORM`. A pass
    without context writes `without_context.jsonl` there, and no scores. With several processes each decodes its share.

    Args:
        model: A run folder, one of its checkpoints, another checkpoint folder, a Hub name or `builtin:…`. For an
            endpoint, the model's name there.
        benchmark: A folder of `d2e data build`, a file of EventSample rows, or a result of `locate_suite`.
        run: The run folder that keeps the results.
        load: Loads the engine. If it keeps the engine, several calls can use it.

    Returns:
        the content of `scores.json`; a pass without context does not write it.

    Raises:
        UserError: no such model or benchmark, bad rows, a prompt that exceeds the model's context, an engine that
            stops, or results of another model or other options in the folder.
    """
    config = resolve_options(model, options)
    benchmark = benchmark if isinstance(benchmark, Benchmark) else locate_benchmark(benchmark)
    bad: list[BadRow] = []
    samples = read_samples(benchmark.file, bad_rows=bad if options.skip_bad else None)
    askable = with_candidates(samples, benchmark.file) if options.answer == "likelihood" else samples
    chosen = choose_per_group(askable, config.max_samples, options.seed)
    rows = BenchmarkRows(samples, chosen, bad, sha256_of(benchmark.file), without_options=len(samples) - len(askable))
    wording, shown = load_prompt_set(config.prompt_set, config.form).in_setting(options.setting), None
    if options.setting == "few_shot":
        shown = load_demonstrations(benchmark, chosen, samples, given=options.demonstrations, seed=options.seed)
        wording = wording.in_setting(options.setting, shown.of)
    parts = (benchmark.name, options.setting, config.form, options.answer)
    name = "-".join(part for part in parts if part not in ("zero_shot", "chat", "generate"))
    files = PassFiles(run / "eval" / name, WITHOUT_CONTEXT if options.without_context else WITH_CONTEXT)
    evaluation = Evaluation(model, config, rows, wording, files, shown, benchmark=benchmark)
    return evaluation.run(lambda completed: _write(evaluation, completed), load)


def _write(evaluation: Evaluation, completed: CompletedPass) -> RunScores:
    """Score the outputs; write predictions, scores and the rows that were left out."""
    files = evaluation.files
    write_bad_rows(evaluation.rows.bad, files.folder / BAD_ROWS_FILE)
    predictions = evaluation.predictions(completed)
    scored = score_predictions(predictions, seed=evaluation.config.options.seed)
    parts = {name: getattr(scored, name) for name in scored.model_fields_set}
    scores = RunScores(**_facts(evaluation, completed.record), **parts)
    write_predictions(predictions, files.predictions)
    if files.stem == WITH_CONTEXT:
        write_scores(files.folder, scores.content(), [files.predictions.name])
    return scores


def _facts(evaluation: Evaluation, record: dict[str, Any]) -> dict[str, Any]:
    """What was decoded and how, by the fields of `EvaluationFacts`."""
    config, rows, benchmark = evaluation.config, evaluation.rows, evaluation.benchmark
    options, decoding, shown = config.options, config.decoding, evaluation.demonstrations
    scored = {"answer": options.answer, "normalise": options.normalise, "without_options": rows.without_options}
    subset = {"per_group": config.max_samples, "seed": options.seed, "of": len(rows.all)}
    return {
        "model": evaluation.model,
        **(scored if evaluation.likelihood else {}),
        **decoding.record(),
        "setting": options.setting,
        "form": config.form,
        "prompt_set": evaluation.wording.names_for(rows.chosen),
        "prompt_set_given": config.prompt_set,
        "max_new_tokens": None if evaluation.likelihood else decoding.max_new_tokens,
        "bench": ScoredBenchmark(
            name=evaluation.files.folder.name, file=str(benchmark.file), sha256=rows.sha256, suite=benchmark.suite
        ),
        "lacking": list(benchmark.lacking),
        "subset": subset if rows.is_subset else None,
        "demonstrations": None if shown is None else {**shown.describe(), "seed": options.seed},
        "bad_rows": len(rows.bad),
        "empty_contexts": evaluation.empty_contexts,
        **({"tagged_by": list(tagged_by)} if (tagged_by := taggers(rows.chosen)) else {}),
        **{key: record[key] for key in ("engine", "engine_counts", "truncated", "resumed", "seconds", "environment")},
        "timed": record.get("timed", {}),  # records of earlier versions have none
    }
