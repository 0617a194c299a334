"""Plots as inline SVG: small, one statement each, so that a phone shows them under one another unshrunk.

No pyplot and no global settings: a figure is an object here and leaves nothing behind. Runs differ by colour
(Okabe and Ito's palette, safe for colour-blind readers) and also by hatch or line style, for print.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any, NamedTuple

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.figure import Figure

from eval.intervals import Interval

_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000")
_HATCHES = ("", "///", "...", "xxx", "---")
_LINES: tuple[Any, ...] = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)))
_WIDTH = 5.0  # inches
_MAX_POINTS = 200  # a curve: more are not seen at this width, and each costs bytes in the page
_STYLE = {
    "svg.fonttype": "none",  # text stays text: small, searchable, in the reader's font
    "font.family": "sans-serif",
    "font.size": 10,
    "text.parse_math": False,  # a run's name may hold "$"
    "axes.spines.top": False,
    "axes.spines.right": False,
    "hatch.linewidth": 0.6,
}


class Curve(NamedTuple):
    """One run's curve; `run` is its place among all runs, so that it keeps its colour where others lack one."""

    run: int
    label: str
    points: Sequence[tuple[int, float]]


def bar_chart(
    title: str, groups: Sequence[str], labels: Sequence[str], scores: Sequence[Sequence[Interval]]
) -> Markup:
    """Horizontal bars in percent with their intervals, one block for each group.

    Args:
        title: names the metric.
        groups: G names.
        labels: R names of runs.
        scores: G × R scores as fractions.
    """
    rows = len(groups) * (len(labels) + 0.6)
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, 0.9 + 0.19 * rows + 0.22 * len(labels)), layout="constrained")
        axes = figure.add_subplot()
        height = 1 / (len(labels) + 0.6)
        for index, label in enumerate(labels):
            column = [row[index] for row in scores]
            means = [100 * score.mean for score in column]
            errors = [
                # Rounding may put a bound a hair inside the mean; matplotlib refuses a negative length.
                [max(0.0, 100 * (score.mean - score.low)) for score in column],
                [max(0.0, 100 * (score.high - score.mean)) for score in column],
            ]
            axes.barh(
                [place + (index - (len(labels) - 1) / 2) * height for place in range(len(groups))],
                means,
                height=0.9 * height,
                xerr=errors,
                label=_legend_name(label),
                color=_COLOURS[index % len(_COLOURS)],
                hatch=_HATCHES[index % len(_HATCHES)],
                edgecolor="white",
                linewidth=0,
                error_kw={"elinewidth": 1.1, "ecolor": "#222222", "capsize": 2},
            )
        axes.set_yticks(range(len(groups)), groups)
        axes.set_ylim(len(groups) - 0.5, -0.5)
        axes.set_xlim(0, 100)
        axes.set_xlabel(f"{title}, percent")
        axes.grid(axis="x", color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        figure.legend(loc="outside upper left", frameon=False, handlelength=1.4)
        return _inline_svg(figure, f"Bar chart: {title} of {', '.join(labels)}, with 95 % intervals")


def line_chart(title: str, curves: Sequence[Curve]) -> Markup:
    """Curves over training steps, one for each run that logged the value."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, 2.6 + 0.22 * len(curves)), layout="constrained")
        axes = figure.add_subplot()
        for run, label, points in curves:
            steps, values = zip(*_thinned(points), strict=True)
            axes.plot(
                steps,
                values,
                label=_legend_name(label),
                color=_COLOURS[run % len(_COLOURS)],
                linestyle=_LINES[run % len(_LINES)],
                linewidth=1.6,
                marker="o" if len(points) == 1 else None,
            )
        axes.set_title(title, fontsize=10, loc="left")
        axes.set_xlabel("step")
        axes.grid(color="#dddddd", linewidth=0.6)
        figure.legend(loc="outside lower left", frameon=False, handlelength=2.6)
        return _inline_svg(figure, f"Line chart over training steps: {title} of {', '.join(c.label for c in curves)}")


def _thinned(points: Sequence[tuple[int, float]]) -> list[tuple[float, float]]:
    """Means of consecutive blocks of near-equal size where there are too many points to draw."""
    count = min(len(points), _MAX_POINTS)
    bounds = [index * len(points) // count for index in range(count + 1)]
    blocks = [points[start:end] for start, end in pairwise(bounds)]
    return [(fmean(step for step, _ in block), fmean(value for _, value in block)) for block in blocks]


def _legend_name(label: str) -> str:
    # matplotlib leaves names that begin with "_" out of a legend; a zero-width space is not seen.
    return f"\u200b{label}" if label.startswith("_") else label


def _inline_svg(figure: Figure, description: str) -> Markup:
    """The figure as an `<svg>` element that scales to its container and reads out as `description`."""
    # Ids of clip paths and markers are hashes; a salt of its own keeps two plots on one page apart.
    with mpl.rc_context({"svg.hashsalt": description}):
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg")
    # The page is HTML: the opening tag needs no namespaces and takes its size from the style sheet. The other ids
    # (axes_1, …) would repeat in every plot, and the style rule would apply to the whole page.
    _, opening, body = re.split(r"(<svg[^>]*>)", buffer.getvalue(), maxsplit=1)
    body = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", body, flags=re.DOTALL)
    body = re.sub(r' id="[A-Za-z0-9.]+_\d+"', "", body)
    view_box = re.findall(r'viewBox="[^"]*"', opening)[0]
    return Markup('<svg role="img" aria-label="{}" {}>{}').format(description, Markup(view_box), Markup(body))
