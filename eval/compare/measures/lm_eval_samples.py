"""What `lm-eval --log_samples` leaves, as measures: each metric of each task, document by document.

A folder holds `samples_TASK_TIME.jsonl` for each task and `results_TIME.json`; of several times the last is read. A
metric is taken where each document has a number and their mean is what the results file says; others, such as a
corpus's BLEU, are no sum over documents.
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
from eval.compare.measures.measure import Measure, digest, shares

_SAMPLES = re.compile(r"samples_(?P<task>.+)_(?P<time>\d{4}-\d{2}-\d{2}T[\d\-.:]+)\.jsonl")
_REMEDY = "write it again: lm-eval … --log_samples --output_path FOLDER"
_UNIT = "documents"
Values = dict[str, float]  # by document


def holds_samples(folder: Path) -> bool:
    """Whether it is such a folder, or holds one for one model."""
    return folder.is_dir() and bool(_files(folder))


def read_samples_folder(folder: Path) -> tuple[list[Measure], dict[str, Any]]:
    """The measures of a folder, pooled over its tasks first, and what its results file says of the run.

    Raises:
        UserError: the folder holds samples of several models, or a file is damaged.
    """
    files = _files(folder)
    models = sorted({str(file.parent) for file in files})
    if len(models) > 1:
        raise UserError(f"{folder}: holds samples of {len(models)} models: {', '.join(models)}", "name one of them")
    last = max(_time(file) for file in files)
    results = _results(files[0].with_name(f"results_{last}.json"))
    by_task = {_task(file): _read(file) for file in files if _time(file) == last}
    metrics = {
        (task, name): found
        for task, rows in by_task.items()
        for name, found in _metrics(rows).items()
        if _is_mean(found, results.get("results", {}).get(task, {}).get(name))
    }
    gold = {
        task: {_id(row): [row.get("doc_hash"), row.get("target_hash")] for row in rows}
        for task, rows in by_task.items()
    }
    measures = _pooled(metrics, gold) if len(by_task) > 1 else []
    for (task, name), found in metrics.items():
        measures += shares(f"{task}, {_shown(name)}", _UNIT, digest(gold[task]), found)
    told: dict[str, Any] = {key: results[key] for key in ("model_name", "date", "lm_eval_version") if key in results}
    return measures, {"system": "lm-eval", **told}


def _files(folder: Path) -> list[Path]:
    """Files of samples in the folder, or else in those below it, which lm-eval names by model."""
    for pattern in ("samples_*.jsonl", "*/samples_*.jsonl"):
        if found := sorted(file for file in folder.glob(pattern) if _SAMPLES.fullmatch(file.name)):
            return found
    return []


def _task(file: Path) -> str:
    match = _SAMPLES.fullmatch(file.name)
    assert match is not None
    return match["task"]


def _time(file: Path) -> str:
    match = _SAMPLES.fullmatch(file.name)
    assert match is not None
    return match["time"]


def _results(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise UserError(f"{file}: cannot be read ({error})", _REMEDY) from None
    return content if isinstance(content, dict) else {}


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
            raise UserError(f"{file}, line {number}: no sample of lm-eval; expected doc_id and metrics", _REMEDY)
        rows.append(row)
    if not rows:
        raise UserError(f"{file}: holds no sample", _REMEDY)
    return rows


def _metrics(rows: Sequence[dict[str, Any]]) -> dict[str, Values]:
    """`METRIC,FILTER`, as the results file calls it → values, of those that are a number in every row."""
    found: dict[str, Values] = defaultdict(dict)
    refused = set()
    for row in rows:
        for metric in row["metrics"]:
            name, value = f"{metric},{row.get('filter', 'none')}", row.get(metric)
            if isinstance(value, bool | int | float) and math.isfinite(value):
                found[name][_id(row)] = float(value)
            else:
                refused.add(name)
    return {name: values for name, values in found.items() if name not in refused}


def _id(row: Mapping[str, Any]) -> str:
    return str(row["doc_id"])


def _is_mean(values: Values, told: Any) -> bool:
    """Whether the results file's score is the mean of the documents' values; true where it says nothing."""
    if not isinstance(told, int | float):
        return True
    return math.isclose(sum(values.values()) / len(values), told, rel_tol=1e-6, abs_tol=1e-9)


def _pooled(metrics: Mapping[tuple[str, str], Values], gold: Mapping[str, Any]) -> list[Measure]:
    """Of metrics that several tasks have, the mean over all their documents."""
    names = dict.fromkeys(name for _, name in metrics)
    pooled = []
    for name in names:
        own = {task: values for (task, metric), values in metrics.items() if metric == name}
        if len(own) > 1:
            every = {f"{task}/{item}": value for task, values in own.items() for item, value in values.items()}
            about = digest({task: gold[task] for task in own})
            pooled += shares(f"{len(own)} tasks, {_shown(name)}", _UNIT, about, every)
    return pooled


def _shown(name: str) -> str:
    metric, _, own_filter = name.partition(",")
    return metric if own_filter == "none" else f"{metric} ({own_filter})"
