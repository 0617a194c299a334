"""Salience by procedure: each judge's correlation with the first annotator (paper figure 3)."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping, Sequence

import matplotlib as mpl
from matplotlib.figure import Figure

from d2e_sft.util.html.figures import COLOURS, HATCHES, STYLE, legend_name

_GOAL = 24  # characters of a goal that are shown


def salience_plot(goals: Sequence[str], correlations: Mapping[str, Sequence[float | None]]) -> str:
    """Draw the correlations as SVG, a group of bars for each procedure.

    Args:
        goals: of P procedures.
        correlations: judge → P correlations; None, where it is undefined, has no bar.
    """
    with mpl.rc_context({**STYLE, "svg.hashsalt": "salience"}):
        figure = Figure(figsize=(10, 4), layout="constrained")
        axes = figure.add_subplot()
        width = 0.8 / len(correlations)
        for index, (judge, values) in enumerate(correlations.items()):
            axes.bar(
                [place + (index - (len(correlations) - 1) / 2) * width for place in range(len(goals))],
                [float("nan") if value is None else value for value in values],
                width=0.9 * width,
                label=legend_name(judge),
                color=COLOURS[index],
                hatch=HATCHES[index],
                edgecolor="white",
                linewidth=0,
            )
        names = [textwrap.shorten(goal, _GOAL, placeholder="…") for goal in goals]
        axes.set_xticks(range(len(goals)), names, rotation=-35, ha="left", rotation_mode="anchor")
        axes.axhline(0, color="#222222", linewidth=0.8)
        axes.set_ylim(top=1.02)
        axes.set_ylabel("Pearson's r, global salience")
        figure.legend(loc="outside upper left", ncols=len(correlations), frameon=False)
        figure.draw_without_rendering()  # the ticks follow the first layout, and the second one their width
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()
