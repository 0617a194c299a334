"""A sweep's plot, score against one axis with a line for each combination of the others, and the page around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from d2e_sft.util.files import write_whole
from d2e_sft.util.html.figures import COLOURS, LINES, STYLE, WIDTH, inline_svg, legend_name
from d2e_sft.util.html.pages import page_environment
from eval.compare.figures import with_interval
from eval.compare.runs import load_runs
from eval.pages.report.page import ReportOptions, write_report
from eval.pages.report.plots import error_lengths
from eval.pages.report.reading import ReadingPoint, reading_chart
from eval.pages.report.samples import datasets_of
from eval.score.statistics import Interval
from eval.sweep.grid import RUN, Axis, Point, describe_point, short_keys, varying
from eval.sweep.record import Sweep
from eval.sweep.results import RESULTS, PointResult, have_conflict, relations_of, scored_folders

_MOST_POINTS = 20  # names of more would not fit beside their points
_WIDE = 20  # values that span more than this factor are drawn on a logarithmic axis


@dataclass(frozen=True)
class SweepLine:
    """The points that differ in the drawn axis alone, in the order of its values."""

    label: str
    places: list[float]
    scores: list[Interval]


def write_sweep_page(sweep: Sweep, results: Sequence[PointResult]) -> list[Path]:
    """Write results.png, results.html and the reports of a plan; without a score there is no plot."""
    page, picture = sweep.out / f"{RESULTS}.html", sweep.out / f"{RESULTS}.png"
    chart = None
    with mpl.rc_context(STYLE):
        if any(result.scores is not None for result in results):
            figure = sweep_chart(sweep.axes, results)
            chart = inline_svg(
                figure, f"{drawn_score(results)} against {drawn_axis(sweep.axes).key} with 95 % intervals"
            )
            figure.savefig(picture, dpi=150)
    reading = sweep_points(sweep.axes, results)
    environment = page_environment(Path(__file__).parent)
    environment.filters["with_interval"] = with_interval
    write_whole(
        page,
        environment.get_template("sweep.html").render(
            sweep=sweep,
            short=short_keys(sweep.axes),
            axes=varying(sweep.axes),
            drawn=drawn_axis(sweep.axes).key,
            results=results,
            relations=relations_of(results),
            chart=chart,
            tagged=have_conflict(results),
            reading=None if reading is None else reading_chart(reading, reference=False),
        ),
    )
    return [page, *([picture] if chart is not None else []), *_planned_reports(sweep, results)]


def _planned_reports(sweep: Sweep, results: Sequence[PointResult]) -> list[Path]:
    written = []
    for name, report in sweep.plan.reports.items() if sweep.plan is not None else ():
        folders, bench = scored_folders(sweep, results, report.points)
        if folders:
            runs = load_runs(folders, bench)
            written.append(sweep.out / f"{name}.html")
            no_texts_of = datasets_of(runs[0]) if report.no_texts else ()
            write_report(runs, written[-1], ReportOptions(no_texts_of=no_texts_of, title=report.title))
    return written


def sweep_points(axes: Sequence[Axis], results: Sequence[PointResult]) -> list[ReadingPoint] | None:
    """Each scored point's aligned and conflict accuracy; None where rows have not both, or points are too many."""
    points = []
    for result in results:
        aligned, conflict = result.accuracy("aligned"), result.accuracy("conflict")
        if aligned is not None and conflict is not None and result.point.scored_in == result.point.name:
            points.append(ReadingPoint(describe_point(result.point, axes), aligned, conflict))
    return points if 0 < len(points) <= _MOST_POINTS else None


def drawn_score(results: Sequence[PointResult]) -> str:
    """What the plot shows."""
    return "Conflict accuracy" if have_conflict(results) else "Mean of EM and F1"


def sweep_chart(axes: Sequence[Axis], results: Sequence[PointResult]) -> Figure:
    """Conflict accuracy, or where no row is tagged the mean of EM and F1 over all samples, against the drawn axis."""
    axis = drawn_axis(axes)
    lines = sweep_lines(axes, results)
    figure = Figure(figsize=(WIDTH, 2.9 + 0.2 * len(lines)), layout="constrained")
    panel = figure.add_subplot()
    for index, line in enumerate(lines):
        means = [100 * score.mean for score in line.scores]
        panel.errorbar(
            line.places,
            means,
            yerr=error_lengths(line.scores),
            label=legend_name(line.label),
            color=COLOURS[index % len(COLOURS)],
            linestyle="none" if axis.key == RUN else LINES[index % len(LINES)],
            marker="o",
            markersize=4,
            linewidth=1.6,
            elinewidth=0.9,
            capsize=2,
        )
    numbers = _numbers(axis)
    if numbers is None:
        panel.set_xticks(range(len(axis.values)), axis.values, rotation=90 if axis.key == RUN else 0)
        panel.margins(x=0.02 if axis.key == RUN else 0.15)
    elif min(numbers) > 0 and max(numbers) / min(numbers) > _WIDE:
        panel.set_xscale("log")
        panel.set_xticks(numbers, axis.values)
        panel.minorticks_off()
    panel.set_xlabel(axis.key)
    panel.set_ylabel(f"{drawn_score(results)}, percent")
    panel.grid(color="#dddddd", linewidth=0.6)
    panel.set_axisbelow(True)
    if len(lines) > 1 or lines[0].label:
        figure.legend(loc="outside upper left", frameon=False, handlelength=2.6)
    return figure


def drawn_axis(axes: Sequence[Axis]) -> Axis:
    """The first axis with several numbers, else the first with several values, else the first."""
    several = varying(axes)
    return next((axis for axis in several if len(axis.values) > 1 and _numbers(axis) is not None), several[0])


def sweep_lines(axes: Sequence[Axis], results: Sequence[PointResult]) -> list[SweepLine]:
    """One line for each combination of the other axes' values, over the points that have scores."""
    axis, short = drawn_axis(axes), short_keys(axes)
    others = [other for other in varying(axes) if other.key != axis.key]
    groups: dict[str, list[tuple[float, Interval]]] = {}
    for result in results:
        if result.drawn is not None:
            label = ", ".join(f"{short[other.key]}={result.point.values[other.key]}" for other in others)
            groups.setdefault(label, []).append((_place(axis, result.point), result.drawn))
    return [
        SweepLine(label, [place for place, _ in points], [score for _, score in points])
        for label, points in ((label, sorted(points, key=lambda pair: pair[0])) for label, points in groups.items())
    ]


def _place(axis: Axis, point: Point) -> float:
    value, numbers = point.values[axis.key], _numbers(axis)
    return float(axis.values.index(value)) if numbers is None else numbers[axis.values.index(value)]


def _numbers(axis: Axis) -> list[float] | None:
    try:
        return [float(value) for value in axis.values]
    except ValueError:
        return None
