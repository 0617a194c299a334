"""A sweep's results as a page, and as Markdown: curves of the probe, then scores of `d2e eval`."""

from __future__ import annotations

import textwrap
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup
from matplotlib.figure import Figure

from d2e_sft.train.samples import PLAIN
from d2e_sft.util.files import write_whole
from d2e_sft.util.html.figures import COLOURS, LINES, WIDTH, inline_svg, legend_name, styled, write_figure
from d2e_sft.util.html.pages import render_page
from eval.compare.compare import Comparison
from eval.compare.reading import (
    VERDICT,
    Setting,
    averaged,
    onset_table,
    over_seeds,
    plateau_table,
    verdicts,
)
from eval.compare.runs import load_runs, typed
from eval.compare.tables import comparison_tables
from eval.compare.verdicts import text_of
from eval.compare.verdicts import verdicts as verdicts_of
from eval.pages.report.page import ReportOptions, write_report
from eval.pages.report.plots import ReadingPoint, error_lengths, reading_chart, score_dots, subset_chart
from eval.pages.report.samples import datasets_of
from eval.score.statistics import Interval
from eval.sweep.plan import Sweep, short_keys
from eval.sweep.results import PointResult, have_conflict, results_table, scored_folders

_MOST_POINTS = 20  # more names would not fit beside their points
_WIDE = 20  # values that span more than this factor get a logarithmic axis
_ROTATED = 6  # with more labels than this, they are vertical


class SweepLine(NamedTuple):
    """The points that differ only in the drawn axis, in the order of its values."""

    label: str
    places: list[float]
    scores: list[Interval]


@styled
def scores_chart(sweep: Sweep, results: Sequence[PointResult]) -> Figure:
    """Draw conflict accuracy, or the mean of EM and F1 if no row is tagged, against the drawn axis."""
    axis, lines = drawn_axis(sweep), sweep_lines(sweep, results)
    labels, numbers = sweep.axes[axis], _numbers(sweep.axes[axis])
    figure = Figure(figsize=(WIDTH, 2.9 + 0.2 * len(lines)), layout="constrained")
    panel = figure.add_subplot()
    for index, line in enumerate(lines):
        panel.errorbar(
            line.places,
            [100 * score.mean for score in line.scores],
            yerr=error_lengths(line.scores),
            label=legend_name(line.label),
            color=COLOURS[index % len(COLOURS)],
            linestyle=LINES[index % len(LINES)] if numbers is not None else "none",
            marker="o",
            markersize=4,
            linewidth=1.6,
            elinewidth=0.9,
            capsize=2,
        )
    if numbers is None:
        many = len(labels) > _ROTATED
        panel.set_xticks(range(len(labels)), labels, rotation=90 if many else 0)
        panel.margins(x=0.02 if many else 0.15)
    elif min(numbers) > 0 and max(numbers) / min(numbers) > _WIDE:
        panel.set_xscale("log")
        panel.set_xticks(numbers, labels)
        panel.minorticks_off()
    panel.set_xlabel(axis)
    panel.set_ylabel(f"{main_score_name(results)}, percent")
    panel.grid(color="#dddddd", linewidth=0.6)
    panel.set_axisbelow(True)
    if len(lines) > 1 or lines[0].label:
        figure.legend(loc="outside upper left", frameon=False, handlelength=2.6)
    return figure


def main_score_name(results: Sequence[PointResult]) -> str:
    return "Conflict accuracy" if have_conflict(results) else "Mean of EM and F1"


def drawn_axis(sweep: Sweep) -> str:
    """Return the first axis with several numbers, otherwise the first with several values."""
    varying = sweep.varying()
    numbers = (axis for axis in varying if len(sweep.axes[axis]) > 1 and _numbers(sweep.axes[axis]) is not None)
    return next(numbers, varying[0])


def sweep_lines(sweep: Sweep, results: Sequence[PointResult]) -> list[SweepLine]:
    """Return one line for each combination of the other axes' values, over the scored points."""
    axis, short = drawn_axis(sweep), short_keys(list(sweep.axes))
    values, numbers = sweep.axes[axis], _numbers(sweep.axes[axis])
    groups: dict[str, list[tuple[float, Interval]]] = {}
    for result in results:
        if result.main_score is not None:
            settings = result.point.values
            label = ", ".join(f"{short[key]}={settings[key]}" for key in sweep.varying() if key != axis)
            place = values.index(settings[axis])
            groups.setdefault(label, []).append((place if numbers is None else numbers[place], result.main_score))
    lines = []
    for label, points in groups.items():
        points.sort(key=lambda pair: pair[0])
        lines.append(SweepLine(label, [place for place, _ in points], [score for _, score in points]))
    return lines


def reading_points(results: Sequence[PointResult]) -> list[ReadingPoint] | None:
    """Return each scored point's aligned and conflict accuracy; None without both or for too many points."""
    points = []
    for result in results:
        aligned, conflict = result.accuracy("aligned"), result.accuracy("conflict")
        if aligned is not None and conflict is not None and result.point.scored_in == result.point.name:
            points.append(ReadingPoint(result.point.name, aligned, conflict))
    return points if 0 < len(points) <= _MOST_POINTS else None


def _numbers(values: Sequence[str]) -> list[float] | None:
    try:
        return [float(value) for value in values]
    except ValueError:
        return None


_GREY = "#999999"
_PANEL = 2.3  # inches
_COLUMNS = 2  # legible on a phone
_TITLE = 30  # characters per line of a panel's title


@styled
def onset_chart(setting: Setting, variants: Sequence[str], threshold: float = VERDICT) -> Figure:
    """Draw the share of seeds that read, over compute, a line per variant, with the numbers at risk below.

    A line ends where the last seed ends, with a bar for each seed that never reads.
    """
    height = 0.17 * len(variants)
    figure = Figure(figsize=(WIDTH, 3.4 + 2 * height), layout="constrained")
    panel, below = figure.subplots(2, 1, sharex=True, height_ratios=[2.6, height])
    onsets = {name: setting.onset(name, threshold) for name in variants}
    for index, (name, onset) in enumerate(onsets.items()):
        shares, last = onset.estimate().cdf, max([*onset.reached, *onset.censored])
        places = [0.0, *shares.quantiles, last]
        heights = [0.0, *(100 * shares.probabilities), 100 * shares.probabilities[-1]]
        colour, line = COLOURS[index % len(COLOURS)], LINES[index // len(COLOURS) % len(LINES)]
        panel.step(places, heights, where="post", color=colour, linestyle=line, linewidth=1.8, label=legend_name(name))
        ends = [heights[bisect_right(places, end) - 1] for end in onset.censored]
        panel.plot(onset.censored, ends, linestyle="none", marker="|", color=colour, markersize=9, markeredgewidth=1.5)
    panel.margins(x=0.03)
    panel.set(ylim=(-3, 103), ylabel=f"seeds that read {100 * threshold:.0f} %, percent")
    panel.grid(color="#dddddd", linewidth=0.6)
    panel.set_axisbelow(True)
    ticks = [tick for tick in panel.get_xticks() if 0 <= tick <= panel.get_xlim()[1]]
    for index, onset in enumerate(onsets.values()):
        for tick in ticks:
            style: Any = {"color": COLOURS[index % len(COLOURS)], "fontsize": 8, "ha": "center", "va": "center"}
            below.text(tick, index, str(onset.at_risk(tick)), **style)
    below.set(ylim=(len(variants) - 0.5, -0.5), yticks=[], xlabel="CPU seconds of training")
    below.set_title("still in training and not reading yet", loc="left", fontsize=8, pad=2)
    below.tick_params(length=0)
    below.spines[:].set_visible(False)
    figure.legend(loc="outside upper left", frameon=False, handlelength=2.6, fontsize=9)
    return figure


def own_variants(sweep: Sweep, setting: Setting) -> list[str]:
    """Return the variants that are decoded as their recipe says, the reference first."""
    alphas = {tuple(map(typed, sweep.axes_of(point).values())): point.recipe.decoding.alpha for point in sweep.points}
    shown = {setting.reference: None}
    for name, by_seed in setting.curves.items():
        row = next(iter(by_seed.values())).iloc[-1]
        alpha = alphas.get(tuple(row.get(axis) for axis in sweep.spec.axes), 0.0)  # rows may lack an axis
        if row["decoder"] == (f"d2e:alpha={alpha:g}" if alpha > 0 else PLAIN):
            shown[name] = None
    return list(shown)


def plateaus_chart(setting: Setting, variants: Sequence[str]) -> Markup:
    """Draw plateaus, conflict against aligned accuracy, with t intervals over seeds; the reference comes first."""
    points = []
    for name in variants:
        ends = setting.plateaus(name)
        points.append(ReadingPoint(name, over_seeds(ends["aligned"]), over_seeds(ends["conflict"])))
    return reading_chart(points)


@styled
def curves_chart(setting: Setting) -> Figure:
    """Draw a panel per variant: both accuracies over steps, mean and range over seeds, and the reference in grey."""
    variants = {str(name): frame for name, frame in setting.rows.groupby("variant", sort=False)}
    height = -(-len(variants) // _COLUMNS)
    figure = Figure(figsize=(_PANEL * _COLUMNS, _PANEL * height), layout="constrained")
    panels = figure.subplots(height, _COLUMNS, sharex=True, sharey=True, squeeze=False)
    for panel, (name, rows) in zip(panels.flat, variants.items(), strict=False):
        drawn = [(variants[setting.reference], _GREY, "conflict", False)]
        drawn += [(rows, COLOURS[1], "aligned", True), (rows, COLOURS[0], "conflict", True)]
        for curve, colour, key, has_band in drawn:
            means, by_step = averaged(curve, key), curve.groupby("step")[key]
            steps = [step for step, *_ in means]
            panel.plot(steps, [100 * mean.mean for _, mean, _ in means], color=colour, linewidth=1.6)
            if has_band:
                low, high = (100 * bound.to_numpy(float) for bound in (by_step.min(), by_step.max()))
                panel.fill_between(steps, low, high, color=colour, alpha=0.2, linewidth=0)
        panel.set_title(textwrap.fill(name, _TITLE), fontsize=8)
        panel.set_ylim(-3, 103)
        panel.grid(color="#eeeeee", linewidth=0.6)
    for panel in panels.flat[len(variants) :]:
        panel.set_axis_off()
    figure.supxlabel("training steps", fontsize=9)
    figure.supylabel("accuracy, percent", fontsize=9)
    return figure


def write_sweep_page(
    sweep: Sweep, results: Sequence[PointResult], settings: Sequence[Setting], seeds: Sequence[Comparison] = ()
) -> list[Path]:
    """Write results.md, results.html, the plot results.png and the reports that the sweep's file asks for.

    `results` is empty if the sweep is only probed; `settings` are those of the probe, and `seeds` the ways of
    training over their seeds.
    """
    text, page, picture = (sweep.out / f"results.{suffix}" for suffix in ("md", "html", "png"))
    written = [text, page]
    table = results_table(sweep, results) if results else None
    tables = {setting.name: [onset_table(setting), plateau_table(setting)] for setting in settings}
    views = []
    for setting in settings:
        variants, title = own_variants(sweep, setting), f"{setting.name}: share of seeds that read, over compute"
        views.append(
            {
                "name": setting.name[:1].upper() + setting.name[1:] or "Training",
                "verdicts": verdicts(setting),
                "tables": tables[setting.name],
                "onsets": inline_svg(onset_chart(setting, variants), title),
                "plateaus": plateaus_chart(setting, variants),
                "curves": inline_svg(curves_chart(setting), f"{setting.name}: accuracy over training steps"),
            }
        )
    chart, reading = None, reading_points(results)
    if any(result.scores is not None for result in results):
        figure = scores_chart(sweep, results)
        chart = inline_svg(figure, f"{main_score_name(results)} against {drawn_axis(sweep)} with 95 % intervals")
        write_figure(figure, picture, dpi=150)
        written.append(picture)
    html = render_page(
        Path(__file__).with_name("sweep.html"),
        sweep=sweep,
        views=views,
        table=table,
        chart=chart,
        axis=drawn_axis(sweep),
        score=main_score_name(results),
        tagged=have_conflict(results),
        reading=None if reading is None else reading_chart(reading, reference=False),
        ways=[
            (c, (subset_chart(c) if c.is_about_subsets else None) or score_dots(c), comparison_tables(c))
            for c in seeds
        ],
        decided=[line for c in seeds for line in verdicts_of(c)],
    )
    write_whole(page, html)
    parts = list[str]()
    for setting, view in zip(settings, views, strict=True):
        lines = "\n".join(f"- {line}" for line in verdicts(setting))
        parts += [f"## {view['name']}", lines, *(item.markdown() for item in tables[setting.name])]
    parts += [f"## Over seeds\n\n{text_of(c, 'markdown').rstrip()}" for c in seeds]
    write_whole(text, "\n\n".join([*parts, *([table.markdown()] if table else [])]) + "\n")
    return [*written, *_reports(sweep, results)]


def _reports(sweep: Sweep, results: Sequence[PointResult]) -> list[Path]:
    written = []
    for name, report in sweep.spec.reports.items():
        folders, bench = scored_folders(sweep, results, report.points)
        if folders:
            runs = load_runs(folders, bench)
            written.append(sweep.out / f"{name}.html")
            no_texts_of = datasets_of(runs[0]) if report.no_texts else ()
            write_report(runs, written[-1], ReportOptions(no_texts_of=no_texts_of, title=report.title))
    return written
