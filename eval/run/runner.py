"""Decode a benchmark with a model, score it, and keep both the predictions and the scores.

options.py        what the call asks for, and the recipe's defaults
bench.py          where the rows are      demonstrations.py   what few-shot prompts show
fingerprint.py    what outputs depend on  results.py          what earlier evaluations left, and what of it fits
engines/          who decodes             decode.py           the pass itself, appended to disk by progress.py
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from d2e_sft.data.prompts import SettingPrompts, load_prompt_set
from d2e_sft.data.sample import BAD_ROWS_FILE, write_bad_rows
from d2e_sft.util.files import write_whole
from eval.run.benchmark import Bench, BenchRows, locate_bench, read_bench
from eval.run.decode import Decoded, Spent, clear_parts, decode_rest, gather, make_room, say_what_was_found
from eval.run.demonstrations import Demonstrations, load_demonstrations
from eval.run.engines.choose import identity_of, make_engine
from eval.run.engines.sample_task import SampleTask
from eval.run.fingerprint import fingerprint, plausibility_of
from eval.run.options import Decoding, EvalOptions, resolve_options, warn_of_idle_options
from eval.run.processes import Processes, join_processes
from eval.run.progress import Fingerprint
from eval.run.results import SCORES_FILE, WITH_CONTEXT, WITHOUT_CONTEXT, Found, PassFiles, find_earlier, write_record
from eval.score.predictions import write_predictions
from eval.score.scores import score_predictions
from eval.score.scoring import score_output


@dataclass(frozen=True)
class Evaluation:
    """One pass over a benchmark, with all that is decided before a model is loaded."""

    model: str
    bench: Bench
    name: str  # of the folder that takes the results
    rows: BenchRows
    decoding: Decoding
    wording: SettingPrompts
    demonstrations: Demonstrations | None
    files: PassFiles

    @property
    def task(self) -> SampleTask:
        """What an engine is told."""
        return SampleTask(
            samples=self.rows.chosen,
            wording=self.wording,
            alpha=self.decoding.alpha,
            plausibility=self.decoding.plausibility,
            without_context=self.decoding.without_context,
            max_new_tokens=self.decoding.max_new_tokens,
            batch_size=self.decoding.batch_size,
            overlong=self.decoding.overlong,
        )


def evaluate_model(model: str, bench: str | Path | Bench, *, run: Path, options: EvalOptions) -> dict[str, Any]:
    """Decode and score a benchmark; writes `run/eval/<bench>/{predictions.jsonl,scores.json}`.

    In other settings than zero-shot the folder is called `<bench>-<setting>`. A pass without context writes
    `without_context.jsonl` there, and no scores. On several processes each decodes its share, and the main one merges.

    Args:
        model: a run folder, one of its checkpoints, another checkpoint folder, a Hub name or `builtin:…`; for an
            endpoint its name of the model.
        bench: a folder that `d2e data build` wrote (its test rows are used), one file of EventSample rows, or what
            `locate_suite` found.
        run: the run folder that keeps the results.

    Returns:
        the content of `scores.json`; in a pass without context what it would be.

    Raises:
        UserError: no such model or benchmark, bad rows, a prompt that exceeds the model's context, an engine that
            cannot go on, or results of another model or other options in the folder.
    """
    evaluation = _prepare(model, bench, run, options)
    processes = join_processes(evaluation.decoding.engine)
    now, found = processes.decided_by_main(lambda: _look(evaluation, options))
    if processes.is_main:
        say_what_was_found(found, evaluation.files, len(evaluation.rows.chosen))
    spent = _decode(evaluation, options, now, found, processes)
    return processes.decided_by_main(lambda: _finish(evaluation, now, found, spent))


def _prepare(model: str, bench: str | Path | Bench, run: Path, options: EvalOptions) -> Evaluation:
    decoding = resolve_options(model, options)
    bench = bench if isinstance(bench, Bench) else locate_bench(bench)
    rows = read_bench(bench, max_samples=decoding.max_samples, seed=decoding.seed, skip_bad=options.skip_bad)
    prompt_set = load_prompt_set(decoding.prompt_set)
    prompt_set.digest(decoding.setting)  # a set without this setting is refused before anything else is read
    shown = None
    wording = SettingPrompts(prompt_set, decoding.setting)
    if decoding.setting == "few_shot":
        shown = load_demonstrations(bench, rows.chosen, rows.all, given=options.demonstrations, seed=decoding.seed)
        wording = SettingPrompts(prompt_set, decoding.setting, shown.of)
    name = bench.name if decoding.setting == "zero_shot" else f"{bench.name}-{decoding.setting}"
    files = PassFiles(run / "eval" / name, WITHOUT_CONTEXT if decoding.without_context else WITH_CONTEXT)
    return Evaluation(model, bench, name, rows, decoding, wording, shown, files)


def _look(evaluation: Evaluation, options: EvalOptions) -> tuple[Fingerprint, Found]:
    decoding = evaluation.decoding
    now = fingerprint(
        identity_of(evaluation.model, decoding, options),
        decoding,
        evaluation.rows,
        evaluation.wording.prompt_set,
        evaluation.demonstrations,
        temperature=options.endpoint.temperature if decoding.engine == "openai" else 0,
        max_model_len=options.vllm.get("max_model_len"),
    )
    found = find_earlier(evaluation.files, now, evaluation.rows.chosen, overwrite=options.overwrite)
    return now, found


def _decode(
    evaluation: Evaluation, options: EvalOptions, now: Fingerprint, found: Found, processes: Processes
) -> Spent:
    if processes.is_main:
        _warn(evaluation, options)
    samples, bad = evaluation.rows.chosen, evaluation.rows.bad
    spent = Spent()
    if len(found.kept.answers) < len(samples):
        engine = make_engine(evaluation.model, evaluation.decoding, options, processes)
        spent = decode_rest(engine, evaluation.task, now, evaluation.files, found, processes)
    else:
        processes.decided_by_main(lambda: make_room(evaluation.files, found))
    if processes.is_main:
        write_bad_rows(bad, evaluation.files.folder / BAD_ROWS_FILE)
    return spent


def _warn(evaluation: Evaluation, options: EvalOptions) -> None:
    bench, empty = evaluation.bench, _empty_contexts(evaluation)
    if bench.lacking:
        print(f"warning: {bench.file.parent} is incomplete, it lacks {', '.join(bench.lacking)}", file=sys.stderr)
    warn_of_idle_options(options, evaluation.decoding)
    if empty and evaluation.decoding.alpha > 0:
        print(
            f"warning: {empty} of {len(evaluation.rows.chosen)} samples have no context and are decoded plainly",
            file=sys.stderr,
        )


def _finish(evaluation: Evaluation, now: Fingerprint, found: Found, spent: Spent) -> dict[str, Any]:
    files, rows, wording = evaluation.files, evaluation.rows, evaluation.wording
    decoded = gather(files, found, now, len(rows.chosen), spent)
    predictions = [
        score_output(sample, output, wording.marker(sample.format), evaluation.decoding.setting)
        for sample, output in zip(rows.chosen, decoded.outputs, strict=True)
    ]
    scores = {
        **_describe(evaluation, decoded),
        **score_predictions(predictions, seed=evaluation.decoding.seed),
    }
    write_predictions(predictions, files.predictions)
    write_record(files, decoded.record)
    if files.stem == WITH_CONTEXT:
        write_whole(files.folder / SCORES_FILE, json.dumps(scores, indent=2, ensure_ascii=False) + "\n")
    clear_parts(files)
    return scores


def _describe(evaluation: Evaluation, decoded: Decoded) -> dict[str, Any]:
    """What was decoded and how: the part of `scores.json` above the scores."""
    decoding, rows, bench = evaluation.decoding, evaluation.rows, evaluation.bench
    subset = None
    if len(rows.chosen) < len(rows.all):
        subset = {"per_group": decoding.max_samples, "seed": decoding.seed, "of": len(rows.all)}
    shown = evaluation.demonstrations
    return {
        "model": evaluation.model,
        "alpha": decoding.alpha,
        **plausibility_of(decoding),
        "setting": decoding.setting,
        "engine": decoded.record["engine"],
        "engine_counts": decoded.record["engine_counts"],
        "prompt_set": evaluation.wording.prompt_set.name,
        "prompt_set_given": decoding.prompt_set,  # a name, or the file of a set of one's own
        "max_new_tokens": decoding.max_new_tokens,
        "bench": {"name": evaluation.name, "file": str(bench.file), "sha256": rows.sha256, "suite": bench.suite},
        "lacking": list(bench.lacking),
        "subset": subset,
        "demonstrations": None if shown is None else {**shown.describe(), "seed": decoding.seed},
        "bad_rows": len(rows.bad),
        "empty_contexts": _empty_contexts(evaluation),
        "truncated": decoded.record["truncated"],
        "resumed": decoded.record["resumed"],
        "seconds": decoded.record["seconds"],
        "environment": decoded.record["environment"],
    }


def _empty_contexts(evaluation: Evaluation) -> int:
    return sum(not sample.context.strip() for sample in evaluation.rows.chosen)
