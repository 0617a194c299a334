"""Read results with measures: of a related system under RUN/eval, or a folder of `lm-eval --log_samples`.

Such a folder holds `samples_TASK_TIME.jsonl` for each task and `results_TIME.json`; the latest time counts. A metric
is used if each document has a number and their mean is the score in the results file. Others, such as a corpus's BLEU,
are not sums over documents. `eval.compare.runs` reads results of rows (`predictions.jsonl`).
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from d2e_sft.util.errors import UserError
from d2e_sft.util.files import read_json_as, read_results
from eval.compare.measures.measure import Measure, MeasureComparison, compare_measures, digest, read_measures, shares
from eval.compare.runs import RunResult, distinct_labels, row_benches, system_of
from eval.score.scores import SCORE_AGAIN, SCORES_FILE

_SAMPLES = re.compile(r"samples_(?P<task>.+)_(?P<time>\d{4}-\d{2}-\d{2}T[\d\-.:]+)\.jsonl")
_REMEDY = "write it again: lm-eval … --log_samples --output_path FOLDER"
_UNIT = "documents"
Values = dict[str, float]  # by document


def holds_samples(folder: Path) -> bool:
    """Whether a folder, or a folder in it, holds samples."""
    return folder.is_dir() and bool(_files(folder))


def read_samples_folder(folder: Path) -> tuple[list[Measure], dict[str, Any]]:
    """Read a folder's measures, pooled ones first, and facts about the run; UserError for several models or damage."""
    files = _files(folder)
    models = sorted({str(file.parent) for file, _, _ in files})
    if len(models) > 1:
        raise UserError(f"{folder}: holds samples of {len(models)} models: {', '.join(models)}", "name one of them")
    last = max(time for _, _, time in files)
    file = files[0][0].with_name(f"results_{last}.json")
    results = read_json_as(dict[str, Any], file, "results of lm-eval", _REMEDY) if file.is_file() else {}
    by_task = {task: _read(file) for file, task, time in files if time == last}
    metrics, gold = {}, {}
    for task, rows in by_task.items():
        gold[task] = {str(row["doc_id"]): [row.get("doc_hash"), row.get("target_hash")] for row in rows}
        for name, found in _metrics(rows).items():
            mean, score = sum(found.values()) / len(found), results.get("results", {}).get(task, {}).get(name)
            is_number = isinstance(score, int | float)
            if not is_number or math.isclose(mean, score, rel_tol=1e-6, abs_tol=1e-9):
                metrics[task, name] = found
    measures = _pooled(metrics, gold) if len(by_task) > 1 else []
    for (task, name), found in metrics.items():
        measures += shares(f"{task}, {_shown(name)}", _UNIT, digest(gold[task]), found)
    facts: dict[str, Any] = {key: results[key] for key in ("model_name", "date", "lm_eval_version") if key in results}
    return measures, {"system": "lm-eval", **facts}


def _files(folder: Path) -> list[tuple[Path, str, str]]:
    """Files of samples, with task and time, in the folder or in its folders, which lm-eval names by model."""
    for pattern in ("samples_*.jsonl", "*/samples_*.jsonl"):
        matches = ((file, _SAMPLES.fullmatch(file.name)) for file in sorted(folder.glob(pattern)))
        if found := [(file, match["task"], match["time"]) for file, match in matches if match is not None]:
            return found
    return []


def _read(file: Path) -> list[dict[str, Any]]:
    rows = []
    for number, line in enumerate(file.read_text(encoding="utf-8").split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UserError(f"{file}, line {number}: not JSON ({error})", _REMEDY) from None
        if not isinstance(row, dict) or "doc_id" not in row or not isinstance(row.get("metrics"), list):
            raise UserError(f"{file}, line {number}: not a sample of lm-eval; expected doc_id and metrics", _REMEDY)
        rows.append(row)
    if not rows:
        raise UserError(f"{file}: holds no sample", _REMEDY)
    return rows


def _metrics(rows: Sequence[dict[str, Any]]) -> dict[str, Values]:
    """`METRIC,FILTER`, the name in the results file → values, for metrics with a number in every row."""
    found: dict[str, Values] = defaultdict(dict)
    refused = set()
    for row in rows:
        for metric in row["metrics"]:
            name, value = f"{metric},{row.get('filter', 'none')}", row.get(metric)
            if isinstance(value, bool | int | float) and math.isfinite(value):
                found[name][str(row["doc_id"])] = float(value)
            else:
                refused.add(name)
    return {name: values for name, values in found.items() if name not in refused}


def _pooled(metrics: Mapping[tuple[str, str], Values], gold: Mapping[str, Any]) -> list[Measure]:
    """For each metric of several tasks, the mean over all their documents."""
    pooled = []
    for name in dict.fromkeys(name for _, name in metrics):
        own = {task: values for (task, metric), values in metrics.items() if metric == name}
        if len(own) > 1:
            every = {f"{task}/{item}": value for task, values in own.items() for item, value in values.items()}
            about = digest({task: gold[task] for task in own})
            pooled += shares(f"{len(own)} tasks, {_shown(name)}", _UNIT, about, every)
    return pooled


def _shown(name: str) -> str:
    metric, _, own_filter = name.partition(",")
    return metric if own_filter == "none" else f"{metric} ({own_filter})"


@dataclass(frozen=True)
class MeasuredRun(RunResult):
    """A result with measures, and the content of `scores.json` or, for lm-eval, what its results file says."""

    bench: str
    measures: Sequence[Measure]
    scores: dict[str, Any]


def load_measured(paths: Sequence[Path], bench: str | None = None) -> list[MeasuredRun] | None:
    """Read the runs' results on a benchmark with its own scorer; None if they share one of rows.

    Args:
        paths: run folders, folders of results themselves, or folders that `lm-eval --log_samples` wrote.
        bench: the folder's name under RUN/eval; None means the only one that all runs share.

    Raises:
        UserError: the runs share several benchmarks and none is chosen, or a result is damaged.
    """
    held = {path: _measured_benches(path) for path in paths}
    shared = _shared(list(held.values()), bench)
    if not shared:
        return None
    rows = _shared([dict.fromkeys(row_benches(path)) for path in paths], bench)
    if len(shared) + len(rows) > 1:
        raise UserError(
            f"the runs share {len(shared) + len(rows)} benchmarks: {', '.join([*rows, *shared])}",
            remedy="choose one: --bench NAME",
        )
    [bench] = shared
    runs = []
    for path, label in zip(paths, distinct_labels(paths), strict=True):
        folder = held[path][bench]
        if bench == "lm-eval" and holds_samples(folder):
            measures, scores = read_samples_folder(folder)
        else:
            scores = read_results(dict[str, Any], folder / SCORES_FILE, "scores", SCORE_AGAIN)
            measures = read_measures(folder)
        runs.append(MeasuredRun(path, label, folder, bench, measures, scores))
    return runs


def compare_runs_by_measures(runs: Sequence[MeasuredRun]) -> MeasureComparison:
    """Compare runs from `load_measured`; differences are to the first."""
    return compare_measures(runs[0].bench, {run.label: run.measures for run in runs})


def _shared(held: Sequence[dict[str, Any]], bench: str | None) -> list[str]:
    names = sorted(set.intersection(*(set(own) for own in held)))
    return [name for name in names if bench in (None, name)]


def _measured_benches(path: Path) -> dict[str, Path]:
    """Benchmark → folder of its result; a folder of a result stands for any variant of its system."""
    if holds_samples(path):
        return {"lm-eval": path}
    found = {}
    for file in (path / SCORES_FILE, *sorted(path.glob(f"eval/*/{SCORES_FILE}"))):
        system = system_of(file) if file.is_file() else None
        if system is not None:
            found[system if file.parent == path else file.parent.name] = file.parent
    return found
