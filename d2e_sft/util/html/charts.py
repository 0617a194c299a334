"""Charts with a line for each name, from top to bottom: bars, and ranges with a mark."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
import matplotlib.ticker
from markupsafe import Markup
from matplotlib.figure import Figure

from d2e_sft.util.html.figures import COLOURS, HATCHES, INK, MARKERS, STYLE, WIDTH, inline_svg, legend_name

Series = Mapping[str, Sequence[float]]


def bars(
    title: str,
    unit: str,
    names: Sequence[str],
    series: Series,
    *,
    stacked: bool = False,
    most: float | None = None,
    chance: float | None = None,
) -> Markup:
    """Draw a bar for each name and series, or with `stacked` one with a part for each series.

    The axis ends at `most`, or after the longest bar; a dashed line is at `chance`.
    """
    height = 0.8 if stacked else 0.8 / len(series)
    with _axes(names, lines=len(names) * (1 if stacked else len(series)), entries=len(series)) as (figure, axes):
        ends = [0.0] * len(names)
        for index, (name, values) in enumerate(series.items()):
            shift = 0 if stacked else (index - (len(series) - 1) / 2) * height
            look = {"color": COLOURS[index % len(COLOURS)], "hatch": HATCHES[index % len(HATCHES)]}
            axes.barh(
                [place + shift for place in range(len(names))],
                values,
                left=ends,
                height=0.9 * height,
                label=legend_name(name),
                edgecolor="white",
                linewidth=0,
                **look,
            )
            ends = [end + value for end, value in zip(ends, values, strict=True)] if stacked else ends
        if chance is not None:
            axes.axvline(chance, color=INK, linewidth=1, linestyle="--")
        axes.set_xlim(0, most)
        axes.set_xlabel(unit)
        return _finished(figure, f"Bar chart: {title}", names)


def ranges(
    title: str, unit: str, names: Sequence[str], series: Mapping[str, Mapping[int, tuple[float, float, float]]]
) -> Markup:
    """Draw a line for each name and series from a low to a high value, with a mark at the middle one."""
    with _axes(names, lines=len(names) * len(series), entries=len(series)) as (figure, axes):
        for index, (label, values) in enumerate(series.items()):
            places = [place + (index - (len(series) - 1) / 2) * 0.24 for place in values]
            low, middle, high = zip(*values.values(), strict=True)
            colour = COLOURS[index % len(COLOURS)]
            axes.hlines(places, low, high, colors=colour, linewidth=2.2)
            marker = MARKERS[index % len(MARKERS)]
            axes.plot(middle, places, marker, color=colour, markersize=5, linestyle="none", label=legend_name(label))
        axes.set_xlim(0, None)
        axes.set_xlabel(unit)
        return _finished(figure, f"Chart: {title}", names)


@contextmanager
def _axes(names: Sequence[str], *, lines: int, entries: int) -> Iterator[tuple[Figure, Any]]:
    """Yield a figure as high as its lines and names need, with room for a legend."""
    with mpl.rc_context(STYLE):
        rows = sum(1 + 1.2 * name.count("\n") for name in names)
        height = 0.9 + 0.17 * max(lines, 1.6 * rows) + 0.2 * entries
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        axes = figure.add_subplot()
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.grid(axis="x", color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(6, integer=True))
        axes.xaxis.set_major_formatter(matplotlib.ticker.StrMethodFormatter("{x:,.0f}"))
        yield figure, axes


def _finished(figure: Figure, title: str, names: Sequence[str]) -> Markup:
    figure.legend(loc="outside upper left", frameon=False, handlelength=1.4)
    return inline_svg(figure, f"{title} of {', '.join(' '.join(name.split()) for name in names)}")
