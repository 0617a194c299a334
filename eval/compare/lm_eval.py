"""Read the measures in a folder of `lm-eval --log_samples`.

Such a folder holds `samples_TASK_TIME.jsonl` for each task and `results_TIME.json`; the latest time counts. A metric
is used if each document has a number from 0 to 1 and their mean is the score in the results file. Others, such as a
corpus's BLEU, are not sums over documents, and numbers outside, such as a document's BLEU, are no shares.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from d2e_sft.util.errors import UserError
from d2e_sft.util.files import read_json_as
from eval.score.measures import Measure, digest, shares

_SAMPLES = re.compile(r"samples_(?P<task>.+)_(?P<time>\d{4}-\d{2}-\d{2}T[\d\-.:]+)\.jsonl")
_REMEDY = "write it again: lm-eval … --log_samples --output_path FOLDER"
_OTHER = "compare tasks that have one, such as acc or exact_match"
_UNIT = "documents"
OUTSIDE = "outside"  # in the facts: measures that are no shares
Values = dict[str, float]  # by document


def holds_samples(folder: Path) -> bool:
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
    metrics, gold, outside = {}, {}, list[str]()
    for task, rows in by_task.items():
        gold[task] = {str(row["doc_id"]): [row.get("doc_hash"), row.get("target_hash")] for row in rows}
        for name, values in _metrics(rows).items():
            mean, score = sum(values.values()) / len(values), results.get("results", {}).get(task, {}).get(name)
            is_number = isinstance(score, int | float)
            if not 0 <= min(values.values()) <= max(values.values()) <= 1:
                outside.append(f"{task}, {_shown(name)}")
            elif not is_number or math.isclose(mean, score, rel_tol=1e-6, abs_tol=1e-9):
                metrics[task, name] = values
    if outside and not metrics:
        raise UserError(f"{folder}: {'; '.join(outside)}: expected a metric from 0 to 1 of each document", _OTHER)
    measures = _pooled(metrics, gold) if len(by_task) > 1 else []
    for (task, name), values in metrics.items():
        measures += shares(f"{task}, {_shown(name)}", _UNIT, digest(gold[task]), values)
    facts: dict[str, Any] = {key: results[key] for key in ("model_name", "date", "lm_eval_version") if key in results}
    return measures, {"system": "lm-eval", **facts, **({OUTSIDE: outside} if outside else {})}


def _files(folder: Path) -> list[tuple[Path, str, str]]:
    """Files of samples, with task and time, in the folder or in its folders, which lm-eval names by model."""
    for pattern in ("samples_*.jsonl", "*/samples_*.jsonl"):
        matches = ((file, _SAMPLES.fullmatch(file.name)) for file in sorted(folder.glob(pattern)))
        if files := [(file, match["task"], match["time"]) for file, match in matches if match is not None]:
            return files
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
    by_metric: dict[str, Values] = defaultdict(dict)
    refused = set()
    for row in rows:
        for metric in row["metrics"]:
            name, value = f"{metric},{row.get('filter', 'none')}", row.get(metric)
            if isinstance(value, bool | int | float) and math.isfinite(value):
                by_metric[name][str(row["doc_id"])] = float(value)
            else:
                refused.add(name)
    return {name: values for name, values in by_metric.items() if name not in refused}


def _pooled(metrics: Mapping[tuple[str, str], Values], gold: Mapping[str, Any]) -> list[Measure]:
    """For each metric of several tasks, the mean over all their documents."""
    pooled = []
    for name in dict.fromkeys(name for _, name in metrics):
        by_task = {task: values for (task, metric), values in metrics.items() if metric == name}
        if len(by_task) > 1:
            by_item = {f"{task}/{item}": value for task, values in by_task.items() for item, value in values.items()}
            sha = digest({task: gold[task] for task in by_task})
            pooled += shares(f"{len(by_task)} tasks, {_shown(name)}", _UNIT, sha, by_item)
    return pooled


def _shown(name: str) -> str:
    metric, _, own_filter = name.partition(",")
    return metric if own_filter == "none" else f"{metric} ({own_filter})"
