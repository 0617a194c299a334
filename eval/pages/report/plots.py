"""Plots: dots with intervals, stacked shares, lines over training steps."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure

from d2e_sft.util.errors import UserError
from d2e_sft.util.html.figures import (
    COLOURS,
    HATCHES,
    LINES,
    MARKERS,
    WIDTH,
    inline_svg,
    legend_name,
    styled,
    write_figure,
)
from eval.compare.compare import Comparison
from eval.compare.figures import LABELS
from eval.compare.measures.measure import MeasureComparison
from eval.score.statistics import Interval
from eval.score.subsets import AVERAGE

MOST_MEASURES = 6  # the first measures are the main ones
_ENDINGS = (".svg", ".png", ".pdf")
_LINE = 0.36  # inches: the least height of a group, whose name has two lines
_TITLE = 52  # characters of a title's line at most
_MAX_POINTS = 200  # per curve; more are invisible at this width and cost bytes


class Curve(NamedTuple):
    """One run's curve; `run` is its index among all runs, which decides its colour."""

    run: int
    label: str
    points: Sequence[tuple[int, float]]
    marked: bool = False  # with a dot at each point


def check_plot(file: Path) -> None:
    """Raise UserError unless the name ends in a kind of picture."""
    if file.suffix.lower() not in _ENDINGS:
        raise UserError(f"--plot {file}: not a kind of picture; expected a name that ends in {', '.join(_ENDINGS)}")


def write_plot(comparison: MeasureComparison, file: Path) -> None:
    """Write a comparison by measures as a picture, in the format that the file's name ends in."""
    write_figure(measures_figure(comparison), file, dpi=200, salt=comparison.bench)


def measures_figure(comparison: MeasureComparison) -> Figure:
    """Draw the first six measures, a dot for each result."""
    rows = comparison.rows[:MOST_MEASURES]
    names = [f"{textwrap.fill(row.name, 20)}\n{row.n:,} {row.unit}" for row in rows]
    return dot_figure("Score", names, comparison.labels, [row.scores for row in rows])


@styled
def dot_figure(
    title: str, groups: Sequence[str], labels: Sequence[str], scores: Sequence[Sequence[Interval]]
) -> Figure:
    """Draw scores in percent on one axis: a line for each group, and in it a dot with its 95 % interval for each run.

    Args:
        title: name of the metric.
        groups: G names.
        labels: R names of runs.
        scores: G × R scores as fractions.
    """
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
    """Distances from each mean to its bounds, in percentage points, as matplotlib takes them."""
    # Rounding may put a bound slightly inside the mean; matplotlib rejects negative lengths.
    below = [max(0.0, 100 * (score.mean - score.low)) for score in scores]
    above = [max(0.0, 100 * (score.high - score.mean)) for score in scores]
    return [below, above]


@styled
def line_chart(title: str, curves: Sequence[Curve]) -> Markup:
    """Draw curves over training steps."""
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


class Part(NamedTuple):
    """One part of a stacked bar; `key` is its name in the data."""

    key: str
    name: str
    colour: str
    hatch: str


@styled
def stacked_figure(
    groups: Mapping[str, Mapping[str, Mapping[str, float]]], parts: Sequence[Part], unit: str, *, middle: bool = False
) -> Figure:
    """Draw stacked horizontal bars in groups, the parts in percent of a bar's sum, with the group's name above them.

    Args:
        groups: group → name of the bar → key of a part → share or count.
        unit: label of the axis.
        middle: draw a line at 50 percent.
    """
    bars = [(group, name, shares) for group, own in groups.items() for name, shares in own.items()]
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
    if middle:
        axes.axvline(50, color="#222222", linewidth=0.8, linestyle=":")
    axes.set_xlabel(unit, loc="right")
    figure.legend(loc="outside upper left", ncols=columns, frameon=False, handlelength=1.4)
    return figure


_LABEL_PARTS = [
    Part(label, "no label", "#bbbbbb", "") if label == "other" else Part(label, label, COLOURS[index], HATCHES[index])
    for index, label in enumerate(LABELS)
]


def score_dots(comparison: Comparison) -> Markup:
    """The mean of EM and F1 of each row with its interval; all samples first."""
    names = []
    for row in comparison.rows:
        name = f"{row.dataset}\n{row.relation}" + ("" if row.dataset == AVERAGE else f" · {row.format}")
        names.append("all" if row.dataset == "all" else name)
    scores = [[cell.mean for cell in row.cells] for row in comparison.rows]
    figure = dot_figure("Mean of EM and F1", names, comparison.labels, scores)
    labels = ", ".join(comparison.labels)
    return inline_svg(figure, f"Dots on one axis: Mean of EM and F1 of {labels}, with 95 % intervals")


def label_shares(comparison: Comparison) -> Markup | None:
    """Gold and predicted nli labels, stacked; None without nli."""
    groups = {}
    for row in comparison.rows:
        if row.gold_shares:
            runs = zip(comparison.labels, row.cells, strict=True)
            predicted = {label: cell.label_shares for label, cell in runs if cell.label_shares}
            groups[f"{row.dataset} · {row.relation}"] = {"gold": row.gold_shares, **predicted}
    if not groups:
        return None
    names = ", ".join(dict.fromkeys(name for own in groups.values() for name in own))
    description = f"Stacked bars: shares of the predicted nli labels of {names}"
    return inline_svg(stacked_figure(groups, _LABEL_PARTS, "predicted labels, percent", middle=True), description)
