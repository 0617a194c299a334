"""A sweep's scores as one table, with a row per point, and the comparisons and paper tables that its file asks for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from d2e_sft.data.sample import Subset
from d2e_sft.util.files import write_json, write_whole
from d2e_sft.util.locks import turn_in
from d2e_sft.util.table import Styled, Table, percent
from eval.compare.compare import Comparison, compare_results
from eval.compare.decoding import DecodingDifferences, decoding_differences
from eval.compare.figures import with_interval
from eval.compare.paper import read_table
from eval.compare.paper_layouts import Layout, own_datasets
from eval.compare.runs import SEED, load_runs, typed
from eval.compare.seeds import compare_seeds, load_groups
from eval.compare.verdicts import text_of
from eval.score.scores import DatasetSubsets, RunScores, headline
from eval.score.statistics import Interval
from eval.sweep.cells import bench_folder, point_scores, read_all_rows, write_rows
from eval.sweep.plan import EVALUATION, Point, Sweep, short_keys
from eval.sweep.spec import PaperTableOf


@dataclass(frozen=True)
class PointResult:
    """A point and its scores: its own or those of the point it equals; None before it is scored.

    `status` is `scored`, `failed`, `not scored`, or `same as NAME` for a point that equals an earlier one.
    """

    point: Point
    status: str
    scores: RunScores | None

    @property
    def subsets(self) -> DatasetSubsets | None:
        """Return the measures by subset of the average or the one dataset; None if no row is tagged."""
        scored = [] if self.scores is None else self.scores.subsets
        return scored[headline([entry.sizes for entry in scored])] if scored else None

    def accuracy(self, subset: Subset) -> Interval | None:
        scores = None if self.subsets is None else self.subsets.subsets.get(subset)
        return None if scores is None else scores.accuracy

    @property
    def main_score(self) -> Interval | None:
        """Return the accuracy on conflict rows; without such rows the mean of EM and F1 over all samples."""
        return self.accuracy("conflict") or (None if self.scores is None else self.scores.overall.mean)

    @property
    def relations(self) -> dict[str, float]:
        """Return relation → mean over its datasets of the mean of EM and F1, as a fraction."""
        by_relation: dict[str, list[float]] = {}
        for group in self.scores.groups if self.scores is not None else ():
            by_relation.setdefault(group.relation, []).append(group.mean.mean)
        return {relation: sum(values) / len(values) for relation, values in by_relation.items()}


def have_conflict(results: Sequence[PointResult]) -> bool:
    """Return whether there are conflict rows; the table then shows measures by subset."""
    return any(result.accuracy("conflict") is not None for result in results)


def collect(sweep: Sweep, failed: Mapping[str, str] | None = None) -> list[PointResult]:
    """Return what each point scored so far; `failed` are the names of points that failed in this call."""
    results = []
    for point in sweep.points:
        scores = point_scores(sweep, point)
        status = "failed" if {point.name, point.trained_in} & set(failed or ()) else "not scored"
        status = status if scores is None else "scored"
        status = status if point.scored_in == point.name else f"same as {point.scored_in}"
        results.append(PointResult(point, status, scores))
    return results


def write_results(sweep: Sweep, results: Sequence[PointResult]) -> list[Path]:
    """Write the scores to the results file, and the comparisons and paper tables.

    The file keeps the probe's rows, and the points of sweeps in other folders that have it as theirs.

    A sweep whose file names no paper tables gets tables 5 and 6, if the benchmark and the axes fit them.
    """
    names, out = {result.point.name for result in results}, str(sweep.out)
    with turn_in(sweep.results.parent):
        rows = read_all_rows(sweep.results)
        kept = [row for row in rows if row.get("name") not in names or row.get("out", out) != out]
        write_rows([*kept, *(_json(sweep, result) for result in results)], sweep.results)
    written = [sweep.results]
    for name, points in sweep.spec.comparisons.items():
        runs, bench = scored_folders(sweep, results, points)
        if len(runs) > 1 and runs[:1] == scored_folders(sweep, results, points[:1])[0]:  # differences are to the first
            comparison = compare_results(load_runs(runs, bench))
            written.append(sweep.out / f"{name}.md")
            write_whole(written[-1], text_of(comparison, "markdown"))
            written.append(sweep.out / f"{name}.json")
            write_json(written[-1], comparison.to_json())
    for name, table in (sweep.spec.paper_tables or _fitting_tables(sweep, results)).items():
        runs, bench = scored_folders(sweep, results, table.points)
        alike = all((run / "eval" / bench).is_dir() for run in runs)  # points in several settings have several names
        if runs:
            chosen = bench if alike else None
            written += read_table(runs, table.layout, chosen, sweep.spec.published).write(sweep.out / name)
    return written


def over_seeds(sweep: Sweep, results: Sequence[PointResult]) -> list[Comparison]:
    """Compare the ways of training over their seeds, as `d2e compare --seeds`; empty without an axis of seeds.

    A way is what points share that differ in the seed alone. Ways are compared if they have the same seeds, two or
    more, and each seed the same benchmark. Models that are scored without training have no seed of their own.
    """
    axis = next((axis for axis in (f"train.{SEED}", SEED) if axis in sweep.axes), None)
    groups = dict[str, dict[int, tuple[Path, str]]]()
    for result in results:
        folder = bench_folder(sweep, result.point)
        if axis is not None and result.status == "scored" and result.point.train and folder is not None:
            values = [result.point.values[key] for key in sweep.varying() if key not in (axis, EVALUATION)]
            group = groups.setdefault((",".join(values) or "all seeds") + result.point.suffix, {})
            group[typed(result.point.values[axis])] = sweep.out / result.point.scored_in, folder.name
    alike = defaultdict[tuple[tuple[int, str], ...], dict[str, dict[int, Path]]](dict)
    for label, group in groups.items():
        if len(group) > 1:
            benches = tuple((seed, bench) for seed, (_, bench) in sorted(group.items()))
            alike[benches][label] = {seed: run for seed, (run, _) in group.items()}
    return [compare_seeds(load_groups(ways, dict(benches))) for benches, ways in alike.items()]


def results_table(sweep: Sweep, results: Sequence[PointResult]) -> Table:
    """Return a row per point; the best score is marked, and equal points share it."""
    axes, short = sweep.varying(), short_keys(list(sweep.axes))
    by_subset = have_conflict(results)
    relations = list(dict.fromkeys(relation for result in results for relation in result.relations))
    relations = relations if len(relations) > 1 else []
    measures = ["conflict", "aligned", "gap", "habit rate"] if by_subset else ["mean", "EM", "F1", *relations]
    ranked = [result for result in results if result.main_score is not None and result.point.evaluation.suite is None]
    means = [result.main_score.mean for result in ranked if result.main_score is not None]
    best = max(means) if len(set(means)) > 1 else None
    lines = []
    for result in results:
        if result.scores is None:
            cells = [percent(None)] * (len(measures) + 1)
        else:
            overall = result.scores.overall
            scores = [with_interval(score) for score in (overall.mean, overall.exact_match, overall.f1)]
            by_relation = [percent(result.relations.get(name)) for name in relations]
            cells = [*scores, *by_relation]
            if by_subset:
                subsets = result.subsets
                conflict = None if subsets is None else subsets.subsets.get("conflict")
                rate, gap = None if conflict is None else conflict.habit_rate, None if subsets is None else subsets.gap
                accuracies = (result.accuracy("conflict"), result.accuracy("aligned"))
                cells = [with_interval(interval) for interval in (*accuracies, gap, rate)]
            cells.append(percent(overall.extraction.get("none", 0.0)))
        if result in ranked and result.main_score is not None and result.main_score.mean == best:
            cells[0] = Styled.of(cells[0], best=True)
        lines.append([*(result.point.values[axis] for axis in axes), *cells, result.status])
    columns = [*(short[axis] for axis in axes), *measures, "unparsed", "status"]
    return Table.of(columns, lines, keys=len(axes), notes=[*filter(None, [decoding_of(sweep, results).line()])])


def decoding_of(sweep: Sweep, results: Sequence[PointResult]) -> DecodingDifferences:
    """Compare how the scored points were decoded."""
    scored = [(result.point.name, bench_folder(sweep, result.point), result.scores) for result in results]
    return decoding_differences({name: (folder, scores) for name, folder, scores in scored if folder and scores})


def _json(sweep: Sweep, result: PointResult) -> dict[str, Any]:
    overall = None if result.scores is None else result.scores.overall
    metrics = ("mean", "exact_match", "f1")
    return {
        "name": result.point.name,
        "out": str(sweep.out),
        "values": {axis: result.point.values[axis] for axis in sweep.axes},
        "status": result.status,
        "trained_in": result.point.trained_in,
        "n": None if overall is None else overall.n,
        "scores": None if overall is None else {metric: asdict(getattr(overall, metric)) for metric in metrics},
        "relations": result.relations,
        **({} if result.subsets is None else {"subsets": result.subsets.model_dump(exclude_unset=True)}),
    }


def _fitting_tables(sweep: Sweep, results: Sequence[PointResult]) -> dict[str, PaperTableOf]:
    """Return tables 5 and 6 of points with a training of their own, whose run folder holds one score."""
    keys = {axis for axis, values in sweep.axes.items() if len(values) > 1}
    parts = bool(keys & {"d2e.debias", "d2e.distill"})
    layouts: dict[Layout, bool] = {"ablation": parts, "sensitivity": "d2e.alpha" in keys}
    scored = [result for result in results if result.status == "scored" and result.scores is not None]
    names = [result.point.name for result in scored if result.point.trained_in == result.point.name]
    datasets = {group.dataset for result in scored if result.scores for group in result.scores.groups}
    if not names or not datasets & own_datasets("piper"):
        return {}
    return {f"table-{name}": PaperTableOf(layout=name, points=names) for name, fits in layouts.items() if fits}


def scored_folders(sweep: Sweep, results: Sequence[PointResult], names: Sequence[str]) -> tuple[list[Path], str]:
    """Return the folders of those of the named points that are scored, and the name of their benchmark."""
    scored = {result.point.name: result.point for result in results if result.scores is not None}
    points = [scored[name] for name in names if name in scored]
    folders = list(dict.fromkeys(sweep.out / point.scored_in for point in points))
    bench = bench_folder(sweep, points[0]) if points else None
    return folders, bench.name if bench else ""
