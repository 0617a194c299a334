"""Read results with measures: of a related system under RUN/eval, or a folder of lm-eval's samples.

`eval.compare.runs` reads results of rows (`predictions.jsonl`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from d2e_sft.util.errors import UserError
from d2e_sft.util.files import read_json_as
from eval.compare.measures.comparison import MeasureComparison, compare_measures
from eval.compare.measures.lm_eval_samples import holds_samples, read_samples_folder
from eval.compare.measures.measure import Measure, read_measures
from eval.compare.runs import RunResult, distinct_labels, row_benches
from eval.score.scores import SCORES_FILE


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
            remedy="choose one with --bench NAME",
        )
    [bench] = shared
    runs = []
    for path, label in zip(paths, distinct_labels(paths), strict=True):
        folder = held[path][bench]
        if bench == "lm-eval" and holds_samples(folder):
            measures, scores = read_samples_folder(folder)
        else:
            measures, scores = read_measures(folder), _content(folder / SCORES_FILE)
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
        system = _content(file).get("system") if file.is_file() else None
        if isinstance(system, str):  # scores of rows have none
            found[system if file.parent == path else file.parent.name] = file.parent
    return found


def _content(file: Path) -> dict[str, Any]:
    return read_json_as(dict[str, Any], file, "scores", "score the run again")
