"""Stacked bars of shares, each bar 100 percent: of predicted labels, and of error patterns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from d2e_sft.util.html.figures import STYLE, WIDTH, inline_svg


class Part(NamedTuple):
    """One of the things that are stacked; `key` is its name in the data."""

    key: str
    name: str
    colour: str
    hatch: str


def stack(axes: Axes, places: Sequence[float], bars: Sequence[Mapping[str, float]], parts: Sequence[Part]) -> None:
    """Draw horizontal bars at these places, their parts in percent of their sum.

    Args:
        bars: key of a part → its share or count; one that sums to nothing is left empty.
    """
    sums = [sum(bar.get(part.key, 0.0) for part in parts) or 1.0 for bar in bars]
    left = [0.0] * len(bars)
    for part in parts:
        widths = [100 * bar.get(part.key, 0.0) / total for bar, total in zip(bars, sums, strict=True)]
        axes.barh(
            places, widths, height=0.8, left=left, label=part.name,
            color=part.colour, hatch=part.hatch, edgecolor="white", linewidth=0,
        )  # fmt: skip
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.set_xlim(0, 100)


def stacked_chart(
    groups: Mapping[str, Mapping[str, Mapping[str, float]]],
    parts: Sequence[Part],
    *,
    unit: str,
    description: str,
    middle: bool = False,
) -> Markup:
    """Bars in groups, a group's name above them.

    Args:
        groups: group → name of the bar → key of a part → share or count.
        unit: what 100 percent is.
        description: read out in place of the chart.
        middle: draw a line at 50 percent.
    """
    bars = [(group, name, shares) for group, own in groups.items() for name, shares in own.items()]
    columns = 2 if len(parts) % 2 == 0 else 3  # no row of the legend is left half empty
    rows = -(-len(parts) // columns)
    with mpl.rc_context(STYLE):
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
        stack(axes, places, [shares for _, _, shares in bars], parts)
        axes.set_yticks(places, [name for _, name, _ in bars])
        axes.set_ylim(place - 0.4, -0.1)
        if middle:
            axes.axvline(50, color="#222222", linewidth=0.8, linestyle=":")
        axes.set_xlabel(unit, loc="right")
        figure.legend(loc="outside upper left", ncols=columns, frameon=False, handlelength=1.4)
        return inline_svg(figure, description)
