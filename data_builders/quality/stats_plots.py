"""The plots of the statistics page: horizontal bars, one statement each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
import matplotlib.ticker
from markupsafe import Markup
from matplotlib.figure import Figure

from d2e_sft.util.html.figures import COLOURS, HATCHES, STYLE, WIDTH, inline_svg, legend_name
from data_builders.quality.stats import Lengths

_INK = "#222222"


def stacked_bars(
    title: str, unit: str, groups: Sequence[str], series: Mapping[str, Sequence[float]], *, most: float | None = None
) -> Markup:
    """One bar a group, made of one part for each series.

    Args:
        unit: of the axis.
        series: name → its part in each group.
        most: end of the axis; by default where the longest bar ends.
    """
    with _axes(len(groups), len(series), groups) as (figure, axes):
        ends = [0.0] * len(groups)
        for index, (name, parts) in enumerate(series.items()):
            axes.barh(range(len(groups)), parts, left=ends, height=0.7, **_look(index, name))
            ends = [end + part for end, part in zip(ends, parts, strict=True)]
        axes.set_xlim(0, most)
        axes.set_xlabel(unit)
        return _finished(figure, f"Bar chart: {title} of {_listed(groups)}")


def grouped_bars(
    title: str, unit: str, groups: Sequence[str], series: Mapping[str, Sequence[float | None]], *, chance: float
) -> Markup:
    """In each group one bar for each series, in percent, with a line at chance; None leaves a bar out."""
    with _axes(len(groups) * len(series), len(series), groups) as (figure, axes):
        height = 0.8 / len(series)
        for index, (name, values) in enumerate(series.items()):
            places = [place + (index - (len(series) - 1) / 2) * height for place in range(len(groups))]
            drawn = [value or 0 for value in values]
            axes.barh(places, drawn, height=0.9 * height, **_look(index, name))
        axes.axvline(chance, color=_INK, linewidth=1, linestyle="--")
        axes.set_xlim(0, 100)
        axes.set_xlabel(unit)
        return _finished(figure, f"Bar chart: {title} of {_listed(groups)}")


def length_ranges(unit: str, groups: Sequence[str], lengths: Sequence[Mapping[Any, Lengths]]) -> Markup:
    """For each group and view a line from the 5th to the 95th percentile with a mark at the median."""
    views = list(dict.fromkeys(view for one in lengths for view in one))
    with _axes(len(groups) * len(views), len(views), groups) as (figure, axes):
        for index, view in enumerate(views):
            shown = [(place, one[view]) for place, one in enumerate(lengths) if view in one]
            places = [place + (index - (len(views) - 1) / 2) * 0.24 for place, _ in shown]
            found = [one for _, one in shown]
            colour = COLOURS[index % len(COLOURS)]
            axes.hlines(places, [one.p5 for one in found], [one.p95 for one in found], colors=colour, linewidth=2.2)
            marks = [one.median for one in found]
            axes.plot(marks, places, "os^"[index % 3], color=colour, markersize=5, linestyle="none", label=view)
        axes.set_xlim(0, None)
        axes.set_xlabel(f"{unit} of the prompt: median and middle 90 %")
        return _finished(figure, f"Chart: prompt lengths by view of {_listed(groups)}")


@contextmanager
def _axes(bars: int, entries: int, groups: Sequence[str]) -> Iterator[tuple[Figure, Any]]:
    """A figure as high as its bars need, the groups along its side from top to bottom, room for a legend."""
    with mpl.rc_context(STYLE):
        lines = sum(1 + 1.2 * group.count("\n") for group in groups)
        height = 0.9 + 0.17 * max(bars, 1.6 * lines) + 0.2 * entries
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        axes = figure.add_subplot()
        axes.set_yticks(range(len(groups)), groups)
        axes.set_ylim(len(groups) - 0.4, -0.6)
        axes.grid(axis="x", color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.xaxis.set_major_locator(mpl.ticker.MaxNLocator(6, integer=True))
        axes.xaxis.set_major_formatter(mpl.ticker.StrMethodFormatter("{x:,.0f}"))
        yield figure, axes


def _finished(figure: Figure, description: str) -> Markup:
    figure.legend(loc="outside upper left", frameon=False, handlelength=1.4)
    return inline_svg(figure, description)


def _look(index: int, name: str) -> dict[str, Any]:
    return {
        "label": legend_name(name),
        "color": COLOURS[index % len(COLOURS)],
        "hatch": HATCHES[index % len(HATCHES)],
        "edgecolor": "white",
        "linewidth": 0,
    }


def _listed(groups: Sequence[str]) -> str:
    return ", ".join(" ".join(group.split()) for group in groups)
