"""Plots: dots with intervals, conflict against aligned accuracy, stacked shares, lines over training steps."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from d2e_sft.util.errors import UserError
from d2e_sft.util.html.figures import (
    COLOURS,
    LINES,
    MARKERS,
    WIDTH,
    inline_svg,
    legend_name,
    styled,
    write_figure,
)
from eval.compare.compare import Comparison
from eval.compare.figures import Part
from eval.compare.tables import main_values, refuse_small_subsets
from eval.score.frame import ALL, AVERAGE
from eval.score.statistics import Interval

MOST_MEASURES = 6  # the first measures are the main ones
_LINE = 0.36  # inches: the least height of a group, whose name has two lines
_TITLE = 52  # characters of a title's line at most
_MAX_POINTS = 200  # per curve; more are invisible at this width and cost bytes
_SPACE = 5.5  # percentage points between two names
_CHARACTER = 1.9  # percentage points that a character of a name takes
_LEGIBLE = 20  # with more points, names are smaller
_NOTE_PLACES = ((45.0, 7.0), (72.0, 24.0), (55.0, 32.0), (80.0, 60.0))  # below the diagonal


class Curve(NamedTuple):
    """One run's curve; `run` is its index among all runs, which decides its colour."""

    run: int
    label: str
    points: Sequence[tuple[int, float]]
    marked: bool = False  # with a dot at each point


def write_plot(comparison: Comparison, file: Path, part: Part | None = None) -> None:
    """Write the picture of a comparison, or of one part of it, in the format that the file's name ends in.

    It is conflict against aligned accuracy if the benchmark is about subsets, otherwise dots. UserError if the part
    has no picture.
    """
    points, kinds = subset_points(comparison), comparison.blocks("kinds", "kind")
    if part == "kinds" and kinds:
        rows = [[score for run in comparison.labels if (score := kind.score(run, "accuracy", ALL))] for kind in kinds]
        figure = dot_figure("Accuracy", [kind.name[0] for kind in kinds], comparison.labels, rows)
    elif points and (part == "subsets" or (part is None and comparison.is_about_subsets)):
        figure = reading_figure(points, reference=len(points) > 1)
    elif part in (None, "groups"):
        figure = scores_figure(comparison)
    else:
        refuse_small_subsets(comparison, part)
        drawn = "subsets (aligned and conflict rows), kinds (two or more) and groups"
        raise UserError(f"--part {part}: {comparison.bench} has no picture of it; there are {drawn}", "write a .tex")
    write_figure(figure, file, dpi=200, salt=comparison.bench)


def score_dots(comparison: Comparison) -> Markup:
    """The scores with their intervals; all samples, or the first measure, first."""
    figure, labels = scores_figure(comparison), ", ".join(comparison.labels)
    if comparison.is_by_measures:
        return inline_svg(figure, f"{comparison.bench}: scores of {labels}")
    return inline_svg(figure, f"Dots on one axis: Mean of EM and F1 of {labels}, with 95 % intervals")


def scores_figure(comparison: Comparison) -> Figure:
    """Draw a dot for each run: of each group's mean of EM and F1, or of the first six measures."""
    if comparison.is_by_measures:
        blocks = comparison.blocks("measures", "measure", "unit")[:MOST_MEASURES]
        names = [f"{textwrap.fill(block.name[0], 20)}\n{block.sizes['']:,} {block.name[1]}" for block in blocks]
        rows = [list(block.scores.values()) for block in blocks]
        return dot_figure("Score", names, comparison.labels, rows)
    names, rows = [], []
    for block in comparison.groups:
        dataset, relation, fmt = block.name
        name = f"{dataset}\n{relation}" + ("" if dataset == AVERAGE else f" · {fmt}")
        names.append(dataset if dataset == ALL else name)
        rows.append([score for run in comparison.labels if (score := block.score(run, "mean"))])
    return dot_figure("Mean of EM and F1", names, comparison.labels, rows)


@styled
def dot_figure(
    title: str, groups: Sequence[str], labels: Sequence[str], scores: Sequence[Sequence[Interval]]
) -> Figure:
    """Draw scores (G groups × R runs, fractions) in percent: a line for each group, in it a dot for each run."""
    line = max(_LINE, 0.14 * len(labels) + 0.16)
    figure = Figure(figsize=(WIDTH, 0.7 + line * len(groups) + 0.22 * len(labels)), layout="constrained")
    axes = figure.add_subplot()
    for index, label in enumerate(labels):
        column = [row[index] for row in scores]
        axes.errorbar(
            [100 * score.mean for score in column],
            [place + (index - (len(labels) - 1) / 2) * 0.14 / line for place in range(len(groups))],
            xerr=error_lengths(column),
            label=legend_name(label),
            fmt=MARKERS[index % len(MARKERS)],
            color=COLOURS[index % len(COLOURS)],
            markersize=6,
            markeredgecolor="white",
            markeredgewidth=0.6,
            elinewidth=1.4,
            clip_on=False,
        )
    for place in range(1, len(groups)):
        axes.axhline(place - 0.5, color="#eeeeee", linewidth=0.8, zorder=0)
    axes.set_yticks(range(len(groups)), groups)
    axes.set_ylim(len(groups) - 0.5, -0.5)
    highest = max((100 * score.high for row in scores for score in row), default=100)
    axes.set_xlim(0, min(100, 10 * (highest // 10 + 1)))
    axes.set_xlabel(f"{title}, percent")
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    figure.legend(loc="outside upper left", frameon=False, handlelength=1.4)
    return figure


def error_lengths(scores: Sequence[Interval]) -> list[list[float]]:
    """Distances from each mean to its bounds, in percentage points, as matplotlib takes them.

    Bounds are cut at 0 and 100: a t interval over few seeds reaches beyond them, and would leave the frame.
    """
    # Rounding may put a bound slightly inside the mean; matplotlib rejects negative lengths.
    below = [max(0.0, 100 * (score.mean - max(0.0, score.low))) for score in scores]
    above = [max(0.0, 100 * (min(1.0, score.high) - score.mean)) for score in scores]
    return [below, above]


@styled
def line_chart(title: str, curves: Sequence[Curve]) -> Markup:
    figure = Figure(figsize=(WIDTH, 2.6 + 0.22 * len(curves)), layout="constrained")
    axes = figure.add_subplot()
    for run, label, points, marked in curves:
        # Consecutive points are averaged if there are too many to draw.
        blocks = np.array_split(np.array(points, dtype=float), min(len(points), _MAX_POINTS))
        axes.plot(
            *np.array([block.mean(axis=0) for block in blocks]).T,
            label=legend_name(label),
            color=COLOURS[run % len(COLOURS)],
            linestyle=LINES[run % len(LINES)],
            linewidth=1.6,
            marker="o" if marked or len(points) == 1 else None,
            markersize=4,
        )
    axes.set_title(textwrap.fill(title, _TITLE), fontsize=10, loc="left")
    axes.set_xlabel("step")
    axes.grid(color="#dddddd", linewidth=0.6)
    figure.legend(loc="outside lower left", frameon=False, handlelength=2.6)
    return inline_svg(figure, f"Line chart over training steps: {title} of {', '.join(c.label for c in curves)}")


class BarPart(NamedTuple):
    """One part of a stacked bar; `key` is its name in the data."""

    key: str
    name: str
    colour: str
    hatch: str


@styled
def stacked_figure(
    groups: Mapping[str, Mapping[str, Mapping[str, float]]],
    parts: Sequence[BarPart],
    unit: str,
) -> Figure:
    """Draw stacked horizontal bars in groups, the parts in percent of a bar's sum.

    `groups` is group → name of the bar → key of a part → share or count.
    """
    bars = [(group, name, shares) for group, by_bar in groups.items() for name, shares in by_bar.items()]
    columns = 2 if len(parts) % 2 == 0 else 3  # fills the rows of the legend
    rows = -(-len(parts) // columns)
    height = 0.65 + 0.25 * rows + 0.24 * len(bars) + 0.3 * len(groups)
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = figure.add_subplot()
    places, place = [], 0.0
    for index, (group, _, _) in enumerate(bars):
        if index == 0 or group != bars[index - 1][0]:
            place += 1.1  # room for the group's name
            axes.text(0, place - 0.8, group, va="center", fontsize=9, color="#555555")
        places.append(place)
        place += 1
    sums = [sum(shares.get(part.key, 0.0) for part in parts) or 1.0 for _, _, shares in bars]
    left = [0.0] * len(bars)
    for part in parts:
        widths = [100 * shares.get(part.key, 0.0) / total for (_, _, shares), total in zip(bars, sums, strict=True)]
        axes.barh(
            places, widths, height=0.8, left=left, label=part.name,
            color=part.colour, hatch=part.hatch, edgecolor="white", linewidth=0,
        )  # fmt: skip
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.set_xlim(0, 100)
    axes.set_yticks(places, [name for _, name, _ in bars])
    axes.set_ylim(place - 0.4, -0.1)
    axes.set_xlabel(unit, loc="right")
    figure.legend(loc="outside upper left", ncols=columns, frameon=False, handlelength=1.4)
    return figure


# Conflict accuracy against aligned accuracy -------------------------------------------------------------------------
# A run that uses the context is at the upper right, near the diagonal; one that answers from habit at the lower right.


class ReadingPoint(NamedTuple):
    """A run, or a group of runs with the (aligned, conflict) accuracy of each seed."""

    label: str
    aligned: Interval
    conflict: Interval
    seeds: Sequence[tuple[float, float]] = ()


def subset_points(comparison: Comparison) -> list[ReadingPoint]:
    """The points of the headline's runs; none if it lacks aligned or conflict rows."""
    points, block = [], comparison.headline
    for run in comparison.labels if block is not None else ():
        aligned, conflict = (block.score(run, "accuracy", name) for name in ("aligned", "conflict"))  # type: ignore[union-attr]
        if aligned is not None and conflict is not None:
            values = main_values(comparison, run)
            seeds = list(zip(values.get("aligned", ()), values.get("conflict", ()), strict=True))
            points.append(ReadingPoint(run, aligned, conflict, seeds))
    return points


def subset_chart(comparison: Comparison) -> Markup | None:
    points = subset_points(comparison)
    return reading_chart(points) if points else None


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
    figure = Figure(figsize=(WIDTH, 0.93 * WIDTH), layout="constrained")
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
        xy = [(100 * aligned, 100 * conflict) for aligned, conflict in point.seeds]
        axes.plot(*zip(*xy, strict=True) if xy else ([], []), ".", color=colour, alpha=0.5, zorder=3, clip_on=False)
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
        name = f"{point.label} (reference)" if marked else point.label
        (below,), (above,) = error_lengths([point.aligned])
        left, room = x > 50, _CHARACTER * len(name)
        place = (x - below - 2.5 if left else x + above + 2.5, height)  # outside the interval
        if room > (place[0] if left else 100 - place[0]):  # no room there: above the interval
            place = (x + (-2.5 if left else 2.5), height + (4 if height < 90 else -4))
        axes.annotate(
            name,
            (x, y),
            xytext=place,
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
    axes.text(30, 33, "no gap: aligned = conflict", rotation=45, ha="center", va="center", **quiet)
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
