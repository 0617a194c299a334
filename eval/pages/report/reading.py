"""The picture of conflict accuracy against aligned accuracy, with a point for each run.

A run that uses the context is at the upper right, near the diagonal; one that answers from habit at the lower right.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from d2e_sft.util.html.figures import COLOURS, MARKERS, inline_svg, styled
from eval.compare.subset_comparison import SubsetComparison
from eval.pages.report.plots import error_lengths
from eval.score.statistics import Interval

_SIDE = 6.4  # inches
_SPACE = 4.6  # percentage points between two names
_LEGIBLE = 20  # with more points, names are smaller
_NOTE_PLACES = ((45.0, 7.0), (72.0, 24.0), (55.0, 32.0), (80.0, 60.0))  # below the diagonal


class ReadingPoint(NamedTuple):
    """One run's accuracies, as fractions."""

    label: str
    aligned: Interval
    conflict: Interval


def subset_chart(comparison: SubsetComparison) -> Markup | None:
    """The chart of the headline's runs; None if it lacks aligned or conflict rows."""
    own = comparison.headline
    if not {"aligned", "conflict"} <= own.sizes.keys():
        return None
    subsets = [(run.label, run.scores.subsets) for run in own.runs]
    return reading_chart([ReadingPoint(x, y["aligned"].accuracy, y["conflict"].accuracy) for x, y in subsets])


def reading_chart(points: Sequence[ReadingPoint], *, reference: bool = True) -> Markup:
    """Conflict accuracy (y) against aligned (x) with 95 % intervals; `reference` marks the first of several points."""
    reference = reference and len(points) > 1
    names = ", ".join(point.label for point in points)
    values = (f"{p.label}: conflict {100 * p.conflict.mean:.1f}, aligned {100 * p.aligned.mean:.1f}" for p in points)
    description = (
        f"Conflict accuracy against aligned accuracy of {names}, with 95 % intervals"
        f"{f'; the reference is {points[0].label}' if reference else ''}. {'; '.join(values)}"
    )
    return inline_svg(reading_figure(points, reference=reference), description)


@styled
def reading_figure(points: Sequence[ReadingPoint], *, reference: bool) -> Figure:
    """The chart as a matplotlib figure."""
    figure = Figure(figsize=(_SIDE, _SIDE), layout="constrained")
    axes = figure.add_subplot()
    _prepare(axes, points)
    if reference:
        axes.axhline(100 * points[0].conflict.mean, color="#aaaaaa", linewidth=0.8, linestyle=":", zorder=1)
        axes.axvline(100 * points[0].aligned.mean, color="#aaaaaa", linewidth=0.8, linestyle=":", zorder=1)
    size = 10 if len(points) <= _LEGIBLE else 7
    for index, (point, height) in enumerate(zip(points, _heights(points), strict=True)):
        marked = reference and index == 0
        x, y = 100 * point.aligned.mean, 100 * point.conflict.mean
        colour = COLOURS[index % len(COLOURS)]
        axes.errorbar(
            [x],
            [y],
            xerr=error_lengths([point.aligned]),
            yerr=error_lengths([point.conflict]),
            fmt=MARKERS[index % len(MARKERS)],
            color=colour,
            markersize=11 if marked else 8,
            markeredgecolor="#222222" if marked else "white",
            markeredgewidth=1.6 if marked else 0.8,
            elinewidth=1.2,
            capsize=2.5,
            zorder=4,
            clip_on=False,
        )
        left = x > 50
        beside = 100 * point.aligned.low - 2.5 if left else 100 * point.aligned.high + 2.5  # outside the interval
        axes.annotate(
            f"{point.label} (reference)" if marked else point.label,
            (x, y),
            xytext=(beside, height),
            ha="right" if left else "left",
            va="center",
            fontsize=size,
            fontweight="bold" if marked else "normal",
            color=colour,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.8},
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.7, "shrinkA": 1, "shrinkB": 4},
            zorder=5,
        )
    return figure


def _prepare(axes: Axes, points: Sequence[ReadingPoint]) -> None:
    axes.set(xlim=(0, 100), ylim=(0, 100), aspect="equal")
    axes.fill_between([0, 100], [0, 100], color="#f3f4f6", zorder=0, linewidth=0)
    axes.plot([0, 100], [0, 100], color="#888888", linewidth=1, linestyle="--", zorder=1)
    quiet: dict[str, Any] = {"color": "#666666", "fontsize": 9, "zorder": 2}
    axes.text(17, 19, "no gap: aligned = conflict", rotation=45, ha="center", va="center", **quiet)
    apart = {  # the note stands where it is farthest from any point
        (x, y): min(abs(y - 100 * p.conflict.mean) + abs(x - 100 * p.aligned.mean) / 4 for p in points)
        for x, y in _NOTE_PLACES
    }
    axes.text(*max(apart, key=lambda place: apart[place]), "answers from habit", ha="center", va="center", **quiet)
    axes.set_xlabel("aligned: habit is right (accuracy, percent)")
    axes.set_ylabel("conflict: habit is wrong (accuracy, percent)")
    axes.set_axisbelow(True)


def _heights(points: Sequence[ReadingPoint]) -> list[float]:
    """The height of each name: its point's, moved so that names on one side do not touch."""
    heights = [100 * point.conflict.mean for point in points]
    for side in (True, False):
        places = [index for index, point in enumerate(points) if (point.aligned.mean > 0.5) == side]
        members = sorted(places, key=heights.__getitem__)
        space = min(_SPACE, 96 / max(1, len(members) - 1))
        for place, index in enumerate(members):
            lowest = heights[members[place - 1]] + space if place else 3.0
            heights[index] = max(heights[index], lowest)
        ceiling = 98.0
        for index in reversed(members):
            heights[index] = min(heights[index], ceiling)
            ceiling = heights[index] - space
    return heights
