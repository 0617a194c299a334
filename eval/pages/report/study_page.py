"""The page of a study: what is decided, one picture of it, and the curves with their bands over seeds."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from d2e_sft.util.files import write_whole
from d2e_sft.util.html.figures import COLOURS, INK, STYLE, WIDTH, inline_svg, legend_name
from d2e_sft.util.html.pages import page_environment
from d2e_sft.util.table import percent
from eval.study.rows import WITHOUT_CONTEXT
from eval.study.summary import Curve, averaged, over_seeds
from eval.study.tables import Setting, p_of, points, verdicts

_GREY = "#999999"
_PANEL = 2.3  # inches
_COLUMNS = 2  # legible on a phone
_TITLE = 30  # characters of a panel's title on a line
_MARKERS = "osD^vP*X<>hd"


@dataclass(frozen=True)
class SettingView:
    """A setting as the template shows it."""

    setting: Setting
    verdicts: list[str]
    ends: Markup
    curves: Markup


def write_study_page(title: str, found: Sequence[Setting], page: Path) -> Path:
    """Write the page as one HTML file, with its pictures inside."""
    with mpl.rc_context(STYLE):
        views = [
            SettingView(
                setting,
                verdicts(setting),
                inline_svg(ends_chart(setting), f"{setting.name}: conflict against aligned accuracy at the end"),
                inline_svg(curves_chart(setting), f"{setting.name}: accuracy over training steps"),
            )
            for setting in found
        ]
    environment = page_environment(Path(__file__).parent)
    environment.filters |= {"percent": percent, "points": points, "p_of": p_of}
    write_whole(page, environment.get_template("study.html").render(title=title, views=views))
    return page


def ends_chart(setting: Setting) -> Figure:
    """Conflict against aligned accuracy at the end, a point a way, with t intervals over seeds."""
    shown = [(way, curves) for way, curves in setting.found.items() if way.decoder != WITHOUT_CONTEXT]
    figure = Figure(figsize=(WIDTH, WIDTH + 0.1 * len(shown)), layout="constrained")
    panel = figure.add_subplot()
    panel.plot([0, 100], [0, 100], color="#cccccc", linewidth=1, zorder=0)
    for index, (way, curves) in enumerate(shown):
        x, y = (over_seeds([100 * curve.last[key] for curve in curves]) for key in ("aligned", "conflict"))
        is_reference = way == setting.reference
        panel.errorbar(
            [x.mean],
            [y.mean],
            xerr=[[x.mean - x.low], [x.high - x.mean]],
            yerr=[[y.mean - y.low], [y.high - y.mean]],
            label=legend_name(way.name(setting.axes) + (" — reference" if is_reference else "")),
            color=INK if is_reference else COLOURS[index % (len(COLOURS) - 1)],
            marker="s" if is_reference else _MARKERS[index % len(_MARKERS)],
            markersize=8 if is_reference else 6,
            markerfacecolor="none" if way.decoder != "plain" else None,
            linestyle="none",
            elinewidth=0.7,
        )
    panel.set(xlim=(-3, 103), ylim=(-3, 103), xlabel="aligned accuracy, percent", ylabel="conflict accuracy, percent")
    panel.text(30, 34, "no habit: both the same", color="#777777", fontsize=8, rotation=45)
    figure.legend(loc="outside lower center", frameon=False, ncols=2, fontsize=8)
    return figure


def curves_chart(setting: Setting) -> Figure:
    """A panel a way: conflict and aligned accuracy over steps, mean and range over seeds, the reference in grey."""
    shown = [(way, curves) for way, curves in setting.found.items() if way.decoder != WITHOUT_CONTEXT]
    rows = -(-len(shown) // _COLUMNS)
    figure = Figure(figsize=(_PANEL * _COLUMNS, _PANEL * rows), layout="constrained")
    panels = figure.subplots(rows, _COLUMNS, sharex=True, sharey=True, squeeze=False)
    for panel, (way, curves) in zip(panels.flat, shown, strict=False):
        _draw(panel, setting.found[setting.reference], _GREY, "conflict", band=False)
        _draw(panel, curves, COLOURS[1], "aligned")
        _draw(panel, curves, COLOURS[0], "conflict")
        panel.set_title(textwrap.fill(way.name(setting.axes), _TITLE), fontsize=8)
        panel.set_ylim(-3, 103)
        panel.grid(color="#eeeeee", linewidth=0.6)
    for panel in panels.flat[len(shown) :]:
        panel.set_axis_off()
    figure.supxlabel("training steps", fontsize=9)
    figure.supylabel("accuracy, percent", fontsize=9)
    return figure


def _draw(panel: Axes, curves: Sequence[Curve], colour: str, key: str, *, band: bool = True) -> None:
    of_steps: dict[int, list[Any]] = {}
    for curve in curves:
        for row in curve.rows:
            of_steps.setdefault(row["step"], []).append(100 * row[key])
    means = averaged(curves, key)
    panel.plot([step for step, *_ in means], [100 * mean.mean for _, mean, _ in means], color=colour, linewidth=1.6)
    if band:
        steps = sorted(of_steps)
        low, high = [min(of_steps[step]) for step in steps], [max(of_steps[step]) for step in steps]
        panel.fill_between(steps, low, high, color=colour, alpha=0.2, linewidth=0)
