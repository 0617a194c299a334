"""Several runs' scores as polygons over the same axes: where each is strong, at a glance.

A radar shows the profile and not how sure a score is; the bars beside it have the intervals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.projections.polar import PolarAxes

from d2e_sft.util.html.figures import COLOURS, LINES, STYLE, WIDTH, inline_svg, legend_name

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
FEWEST_AXES = 3  # with two, a polygon is a line
_STEP = 20  # percent between two rings


def radar_chart(title: str, names: Sequence[str], labels: Sequence[str], scores: Sequence[Sequence[float]]) -> Markup:
    """One polygon a run; all axes begin at 0 in the middle and end at the same ring.

    Args:
        title: names the metric.
        names: A names of axes, at least three.
        labels: R names of runs.
        scores: A × R scores as fractions.

    Raises:
        ValueError: there are fewer than three axes.
    """
    if len(names) < FEWEST_AXES:
        raise ValueError(f"a radar of {len(names)} axes; expected at least {FEWEST_AXES}")
    angles = [2 * math.pi * index / len(names) for index in range(len(names))]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 4.2 + 0.22 * len(labels)), layout="constrained")
        axes = figure.add_subplot(projection="polar")
        assert isinstance(axes, PolarAxes)
        _prepare(axes, angles, names, outer_ring(scores))
        for run, label in enumerate(labels):
            values = [100 * row[run] for row in scores]
            axes.plot(
                [*angles, angles[0]],
                [*values, values[0]],
                label=legend_name(label),
                color=COLOURS[run % len(COLOURS)],
                linestyle=LINES[run % len(LINES)],
                marker=MARKERS[run % len(MARKERS)],
                markersize=4.5,
                linewidth=1.6,
            )
        figure.legend(loc="outside upper left", frameon=False, handlelength=3.2)
        return inline_svg(figure, f"Radar chart: {title} of {', '.join(labels)} on {len(names)} axes")


def outer_ring(scores: Sequence[Sequence[float]]) -> int:
    """The percentage at the rim: the next multiple of 20 above all scores, so that weak runs fill the chart too."""
    highest = max(max(row) for row in scores)
    return max(_STEP, _STEP * math.ceil(round(100 * highest, 6) / _STEP))


def _prepare(axes: PolarAxes, angles: Sequence[float], names: Sequence[str], ring: int) -> None:
    axes.set_theta_zero_location("N")
    axes.set_theta_direction(-1)
    axes.set_xticks(angles, names, fontsize=8)
    axes.tick_params(axis="x", pad=2)
    for text, angle in zip(axes.get_xticklabels(), angles, strict=True):
        side = math.sin(angle)
        # Names beside the circle grow away from it; matplotlib would centre them on its rim.
        text.set_horizontalalignment("center" if abs(side) < 0.1 else "left" if side > 0 else "right")
        text.set_verticalalignment(
            "bottom" if math.cos(angle) > 0.9 else "top" if math.cos(angle) < -0.9 else "center"
        )
    axes.set_ylim(0, ring)
    axes.set_yticks(range(_STEP, ring + 1, _STEP), [])
    for value in range(_STEP, ring + 1, _STEP):
        # Text of our own, above the polygons, which would hide the labels of the rings; between two axes.
        axes.text(
            angles[1] / 2, value, str(value), fontsize=7.5, color="#444444", ha="center", va="center", zorder=5,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.6},
        )  # fmt: skip
    axes.grid(color="#d5d5d5", linewidth=0.6)
    axes.spines["polar"].set_color("#aaaaaa")
