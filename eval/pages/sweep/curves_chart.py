"""What a probe measured during training: accuracies at the end, and curves with their range over seeds."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from d2e_sft.util.html.figures import COLOURS, styled
from eval.pages.report.reading import ReadingPoint, reading_chart
from eval.sweep.curves import Curve, averaged, over_seeds
from eval.sweep.settings import Setting

_GREY = "#999999"
_PANEL = 2.3  # inches
_COLUMNS = 2  # legible on a phone
_TITLE = 30  # characters per line of a panel's title


def ends_chart(setting: Setting) -> Markup:
    """Draw conflict against aligned accuracy at the end, a point per way, with t intervals over seeds."""
    points = []
    for way, curves in sorted(setting.shown.items(), key=lambda item: item[0] != setting.reference):
        ends = (over_seeds([curve.last[key] for curve in curves]) for key in ("aligned", "conflict"))
        points.append(ReadingPoint(way.name(setting.axes), *ends))
    return reading_chart(points)


@styled
def curves_chart(setting: Setting) -> Figure:
    """Draw a panel per way: both accuracies over steps, mean and range over seeds, and the reference in grey."""
    rows = -(-len(setting.shown) // _COLUMNS)
    figure = Figure(figsize=(_PANEL * _COLUMNS, _PANEL * rows), layout="constrained")
    panels = figure.subplots(rows, _COLUMNS, sharex=True, sharey=True, squeeze=False)
    for panel, (way, curves) in zip(panels.flat, setting.shown.items(), strict=False):
        _draw(panel, setting.found[setting.reference], _GREY, "conflict", band=False)
        _draw(panel, curves, COLOURS[1], "aligned")
        _draw(panel, curves, COLOURS[0], "conflict")
        panel.set_title(textwrap.fill(way.name(setting.axes), _TITLE), fontsize=8)
        panel.set_ylim(-3, 103)
        panel.grid(color="#eeeeee", linewidth=0.6)
    for panel in panels.flat[len(setting.shown) :]:
        panel.set_axis_off()
    figure.supxlabel("training steps", fontsize=9)
    figure.supylabel("accuracy, percent", fontsize=9)
    return figure


def _draw(panel: Axes, curves: Sequence[Curve], colour: str, key: str, *, band: bool = True) -> None:
    means = averaged(curves, key)
    steps = [step for step, *_ in means]
    panel.plot(steps, [100 * mean.mean for _, mean, _ in means], color=colour, linewidth=1.6)
    if band:
        values = [[100 * row[key] for curve in curves for row in curve.rows if row["step"] == step] for step in steps]
        panel.fill_between(steps, list(map(min, values)), list(map(max, values)), color=colour, alpha=0.2, linewidth=0)
