"""A sweep's scores against one axis, with a line for each combination of the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.figure import Figure

from d2e_sft.util.html.figures import COLOURS, LINES, WIDTH, legend_name, styled
from eval.pages.report.plots import error_lengths
from eval.pages.report.reading import ReadingPoint
from eval.score.statistics import Interval
from eval.sweep.plan import Sweep
from eval.sweep.points import short_keys
from eval.sweep.results import PointResult, have_conflict

_MOST_POINTS = 20  # more names would not fit beside their points
_WIDE = 20  # values that span more than this factor get a logarithmic axis
_ROTATED = 6  # with more labels than this, they are vertical


class SweepLine(NamedTuple):
    """The points that differ only in the drawn axis, in the order of its values."""

    label: str
    places: list[float]
    scores: list[Interval]


@styled
def scores_chart(sweep: Sweep, results: Sequence[PointResult]) -> Figure:
    """Draw conflict accuracy, or the mean of EM and F1 if no row is tagged, against the drawn axis."""
    axis, lines = drawn_axis(sweep), sweep_lines(sweep, results)
    labels, numbers = sweep.axes[axis], _numbers(sweep.axes[axis])
    figure = Figure(figsize=(WIDTH, 2.9 + 0.2 * len(lines)), layout="constrained")
    panel = figure.add_subplot()
    for index, line in enumerate(lines):
        panel.errorbar(
            line.places,
            [100 * score.mean for score in line.scores],
            yerr=error_lengths(line.scores),
            label=legend_name(line.label),
            color=COLOURS[index % len(COLOURS)],
            linestyle=LINES[index % len(LINES)] if numbers is not None else "none",
            marker="o",
            markersize=4,
            linewidth=1.6,
            elinewidth=0.9,
            capsize=2,
        )
    if numbers is None:
        many = len(labels) > _ROTATED
        panel.set_xticks(range(len(labels)), labels, rotation=90 if many else 0)
        panel.margins(x=0.02 if many else 0.15)
    elif min(numbers) > 0 and max(numbers) / min(numbers) > _WIDE:
        panel.set_xscale("log")
        panel.set_xticks(numbers, labels)
        panel.minorticks_off()
    panel.set_xlabel(axis)
    panel.set_ylabel(f"{main_score_name(results)}, percent")
    panel.grid(color="#dddddd", linewidth=0.6)
    panel.set_axisbelow(True)
    if len(lines) > 1 or lines[0].label:
        figure.legend(loc="outside upper left", frameon=False, handlelength=2.6)
    return figure


def main_score_name(results: Sequence[PointResult]) -> str:
    return "Conflict accuracy" if have_conflict(results) else "Mean of EM and F1"


def drawn_axis(sweep: Sweep) -> str:
    """Return the first axis with several numbers, otherwise the first with several values."""
    several = sweep.varying()
    return next(
        (axis for axis in several if len(sweep.axes[axis]) > 1 and _numbers(sweep.axes[axis]) is not None), several[0]
    )


def sweep_lines(sweep: Sweep, results: Sequence[PointResult]) -> list[SweepLine]:
    """Return one line for each combination of the other axes' values, over the scored points."""
    axis, short = drawn_axis(sweep), short_keys(list(sweep.axes))
    values, numbers = sweep.axes[axis], _numbers(sweep.axes[axis])
    groups: dict[str, list[tuple[float, Interval]]] = {}
    for result in results:
        if result.main_score is not None:
            own = result.point.values
            label = ", ".join(f"{short[other]}={own[other]}" for other in sweep.varying() if other != axis)
            place = values.index(own[axis])
            groups.setdefault(label, []).append((place if numbers is None else numbers[place], result.main_score))
    lines = []
    for label, points in groups.items():
        points.sort(key=lambda pair: pair[0])
        lines.append(SweepLine(label, [place for place, _ in points], [score for _, score in points]))
    return lines


def reading_points(results: Sequence[PointResult]) -> list[ReadingPoint] | None:
    """Return each scored point's aligned and conflict accuracy; None without both or for too many points."""
    points = []
    for result in results:
        aligned, conflict = result.accuracy("aligned"), result.accuracy("conflict")
        if aligned is not None and conflict is not None and result.point.scored_in == result.point.name:
            points.append(ReadingPoint(result.point.name, aligned, conflict))
    return points if 0 < len(points) <= _MOST_POINTS else None


def _numbers(values: Sequence[str]) -> list[float] | None:
    try:
        return [float(value) for value in values]
    except ValueError:
        return None
