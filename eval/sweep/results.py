"""A sweep's results as one table: a row a point, with its values, scores and what became of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from d2e_sft.data.sample import Subset
from d2e_sft.util.files import write_json, write_whole
from d2e_sft.util.table import Styled, Table, percent
from eval.compare.compare import compare_runs
from eval.compare.figures import with_interval
from eval.compare.paper_entries import read_table
from eval.compare.paper_layouts import Layout, own_datasets
from eval.compare.runs import load_runs
from eval.compare.verdicts import markdown_text
from eval.score.scores import RunScores
from eval.score.statistics import Interval
from eval.score.subsets import DatasetSubsets, headline
from eval.sweep.grid import Axis, Point, short_keys, varying
from eval.sweep.plan import PaperTableOf
from eval.sweep.record import Sweep
from eval.sweep.run import Failure, bench_folder, point_scores

RESULTS = "results"


@dataclass(frozen=True)
class PointResult:
    """A point and what it scored.

    Attributes:
        status: `scored`, `failed`, `not scored`, or `same as NAME` for a point that equals an earlier one.
        scores: its own or the equal point's; None before it is scored.
    """

    point: Point
    status: str
    scores: RunScores | None

    @property
    def mean(self) -> Interval | None:
        """The mean of EM and F1 over all samples."""
        return None if self.scores is None else self.scores.overall.mean

    @property
    def subsets(self) -> DatasetSubsets | None:
        """The measures by subset that are told: of the average or the one dataset; None where no row is tagged."""
        scored = [] if self.scores is None else self.scores.subsets
        return scored[headline([own.subsets for own in scored])] if scored else None

    def accuracy(self, subset: Subset) -> Interval | None:
        """The accuracy on a subset of these."""
        own = None if self.subsets is None else self.subsets.subsets.get(subset)
        return None if own is None else own.accuracy

    @property
    def drawn(self) -> Interval | None:
        """What a plot shows: the accuracy on conflict rows, or where there are none the mean."""
        return self.accuracy("conflict") or self.mean

    @property
    def relations(self) -> dict[str, float]:
        """Relation → mean over its datasets of the mean of EM and F1, as a fraction."""
        found: dict[str, list[float]] = {}
        for group in self.scores.groups if self.scores is not None else ():
            found.setdefault(group.relation, []).append(group.mean.mean)
        return {relation: sum(values) / len(values) for relation, values in found.items()}


def relations_of(results: Sequence[PointResult]) -> list[str]:
    """The relations in order of appearance, which have columns of their own where there are several."""
    relations = list(dict.fromkeys(relation for result in results for relation in result.relations))
    return relations if len(relations) > 1 else []


def have_conflict(results: Sequence[PointResult]) -> bool:
    """Whether there are conflict rows; the columns are then those of measures by subset."""
    return any(result.accuracy("conflict") is not None for result in results)


def collect(sweep: Sweep, failures: Sequence[Failure] = ()) -> list[PointResult]:
    """What each point scored so far."""
    failed = {failure.point.name for failure in failures}
    results = []
    for point in sweep.points:
        scores = point_scores(sweep, point)
        if point.scored_in != point.name:
            status = f"same as {point.scored_in}"
        elif scores is not None:
            status = "scored"
        else:
            status = "failed" if failed & {point.name, point.trained_in} else "not scored"
        results.append(PointResult(point, status, scores))
    return results


def write_results(sweep: Sweep, results: Sequence[PointResult]) -> list[Path]:
    """Write results.md and results.json, and the plan's comparisons and paper tables of what is scored by now.

    A grid has the paper's tables 5 and 6, where benchmark and axes fit them.
    """
    written = [sweep.out / f"{RESULTS}.md", sweep.out / f"{RESULTS}.json"]
    write_whole(written[0], results_table(sweep.axes, results).markdown() + "\n")
    write_json(written[1], [_json(result) for result in results])
    for name, points in sweep.plan.comparisons.items() if sweep.plan is not None else ():
        runs, bench = scored_folders(sweep, results, points)
        if len(runs) > 1 and runs[0] == sweep.out / points[0]:  # differences are to the first
            comparison = compare_runs(load_runs(runs, bench))
            written += [sweep.out / f"{name}.md", sweep.out / f"{name}.json"]
            write_whole(written[-2], markdown_text(comparison) + "\n")
            write_json(written[-1], comparison.to_json())
    tables = _fitting_tables(sweep, results) if sweep.plan is None else sweep.plan.paper_tables
    for name, table in tables.items():
        runs, bench = scored_folders(sweep, results, table.points)
        if runs:
            written += read_table(runs, table.layout, bench).write(sweep.out / name)
    return written


def results_table(axes: Sequence[Axis], results: Sequence[PointResult]) -> Table:
    """A row for each point; the best mean, or conflict accuracy, is marked, and equal points share the mark."""
    short = short_keys(axes)
    relations = relations_of(results)
    of_scores = (
        ["conflict", "aligned", "gap", "habit rate"] if have_conflict(results) else ["mean", "EM", "F1", *relations]
    )
    columns = [*(short[axis.key] for axis in varying(axes)), *of_scores, "unparsed", "status"]
    drawn = [result.drawn.mean for result in results if result.drawn is not None]
    best = max(drawn) if len(set(drawn)) > 1 else None
    lines = []
    for result in results:
        values = [result.point.values[axis.key] for axis in varying(axes)]
        if result.scores is None:
            cells = [percent(None)] * (len(of_scores) + 1)
        else:
            cells = (
                _subset_cells(result) if have_conflict(results) else _cells(result.scores, result.relations, relations)
            )
            cells[0] = Styled.of(cells[0], best=result.drawn is not None and result.drawn.mean == best)
            cells.append(percent(result.scores.overall.extraction.get("none", 0.0)))
        lines.append([*values, *cells, result.status])
    return Table.of(columns, lines, keys=len(varying(axes)))


def _cells(scores: RunScores, averages: Mapping[str, float], relations: Sequence[str]) -> list[str]:
    overall = (scores.overall.mean, scores.overall.exact_match, scores.overall.f1)
    return [*map(with_interval, overall), *(percent(averages.get(name)) for name in relations)]


def _subset_cells(result: PointResult) -> list[str]:
    conflict = None if result.subsets is None else result.subsets.subsets.get("conflict")
    gap = None if result.subsets is None else result.subsets.gap
    rate = None if conflict is None else conflict.habit_rate
    return [with_interval(one) for one in (result.accuracy("conflict"), result.accuracy("aligned"), gap, rate)]


def _json(result: PointResult) -> dict[str, Any]:
    scores = result.scores
    return {
        "name": result.point.name,
        "values": result.point.values,
        "status": result.status,
        "trained_in": result.point.trained_in,
        "n": None if scores is None else scores.overall.n,
        "scores": None
        if scores is None
        else {metric: asdict(getattr(scores.overall, metric)) for metric in ("mean", "exact_match", "f1")},
        "relations": result.relations,
        **({} if result.subsets is None else {"subsets": result.subsets.model_dump(exclude_unset=True)}),
    }


def _fitting_tables(sweep: Sweep, results: Sequence[PointResult]) -> dict[str, PaperTableOf]:
    """Only of points that are runs of their own: a point that is scored twice with other α has one folder a score."""
    keys = {axis.key for axis in sweep.axes if len(axis.values) > 1}
    layouts: dict[Layout, bool] = {
        "ablation": bool(keys & {"d2e.debias", "d2e.distill"}),
        "sensitivity": "d2e.alpha" in keys,
    }
    scored = [result for result in results if result.status == "scored" and result.scores is not None]
    own = [result.point.name for result in scored if result.point.trained_in == result.point.name]
    datasets = {group.dataset for result in scored if result.scores for group in result.scores.groups}
    if not own or not datasets & own_datasets("piper"):
        return {}
    return {f"table-{name}": PaperTableOf(layout=name, points=own) for name, wanted in layouts.items() if wanted}


def scored_folders(sweep: Sweep, results: Sequence[PointResult], names: Sequence[str]) -> tuple[list[Path], str]:
    """The folders of those of the named points that are scored, and the name of their benchmark."""
    scored = {result.point.name: result.point for result in results if result.scores is not None}
    points = [scored[name] for name in names if name in scored]
    folders = list(dict.fromkeys(sweep.out / point.scored_in for point in points))
    return folders, bench_folder(sweep, points[0]) if points else ""
