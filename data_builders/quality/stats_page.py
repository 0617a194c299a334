"""The page of `d2e data stats`: one file, without external parts, with plots of one statement each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import matplotlib.ticker
from markupsafe import Markup
from matplotlib.figure import Figure

from d2e_sft.data.sample import NLI_LABELS, RELATIONS
from d2e_sft.util.files import write_whole
from d2e_sft.util.html import pages
from d2e_sft.util.html.figures import COLOURS, HATCHES, STYLE, WIDTH, inline_svg, legend_name
from data_builders.quality.stats import GroupStats, Stats

_INK = "#222222"


class _Row(NamedTuple):
    """A group and the name that tells it from the others on the page."""

    name: str
    stats: GroupStats


def write_page(stats: Stats, out: Path) -> None:
    """Write the page to `out`; create its folder and replace an earlier page."""
    write_whole(out, render_page(stats))


def render_page(stats: Stats) -> str:
    """Return the page of `write_page` as text."""
    rows = _named(stats.groups)
    nli = [row for row in rows if row.stats.context_free]
    refined = [row for row in rows if row.stats.refinement["refined_share_of_words"] is not None]
    return pages.render_page(
        Path(__file__).with_name("stats_page.html"),
        title=f"Event-reasoning data: {', '.join(dict.fromkeys(group.group.data for group in stats.groups))}",
        stats=stats,
        rows=rows,
        nli=nli,
        refined=refined,
        plots=_plots(stats.unit, rows, refined) | (_plot_nli(nli, measured=not stats.left_out) if nli else {}),
    )


def _plots(unit: str, rows: Sequence[_Row], refined: Sequence[_Row]) -> dict[str, Markup]:
    totals = {
        relation.replace("_", " "): [
            sum(n for (found, _), n in row.stats.counts.items() if found == relation) for row in rows
        ]
        for relation in RELATIONS
        if any(found == relation for row in rows for found, _ in row.stats.counts)
    }
    plots = {"rows": _stacked_bars("rows by relation", "rows", rows, totals), "lengths": _length_ranges(unit, rows)}
    if refined:
        kept = {"kept by the refiner": [100 * row.stats.refinement["refined_share_of_words"] for row in refined]}
        title = "share of words that the refiner keeps"
        plots["refined"] = _stacked_bars(title, "percent", refined, kept, most=100)
    return plots


def _plot_nli(rows: Sequence[_Row], *, measured: bool) -> dict[str, Markup]:
    counts = [row.stats.labels for row in rows]
    shares = {label: [100 * own[label] / sum(own.values()) for own in counts] for label in NLI_LABELS}
    found = [row.stats.context_free for row in rows if row.stats.context_free]
    series = {"more frequent label": [100 * one.majority_share for one in found]}
    if measured:
        series["hypothesis alone"] = [100 * (one.accuracy or 0) for one in found]
    return {
        "labels": _stacked_bars("nli labels", "percent", rows, shares, most=100),
        "context_free": _grouped_bars("accuracy without the context", "accuracy, percent", rows, series, chance=50),
    }


def _named(groups: Sequence[GroupStats]) -> list[_Row]:
    """Name the groups by their dataset, with split and set where there are several."""
    parts = [(group.group.dataset, group.group.split, group.group.data) for group in groups]
    varied = [True, len({split for _, split, _ in parts}) > 1, len({data for *_, data in parts}) > 1]
    names = ([part for part, shown in zip(one, varied, strict=True) if shown] for one in parts)
    return [
        _Row("\n".join(filter(None, (first, " · ".join(more)))), group)
        for (first, *more), group in zip(names, groups, strict=True)
    ]


def _stacked_bars(
    title: str, unit: str, rows: Sequence[_Row], series: Mapping[str, Sequence[float]], *, most: float | None = None
) -> Markup:
    """Draw one bar per group, with one part for each series; the axis ends at `most`, or after the longest bar."""
    with _axes(len(rows), len(series), rows) as (figure, axes):
        ends = [0.0] * len(rows)
        for index, (name, parts) in enumerate(series.items()):
            axes.barh(range(len(rows)), parts, left=ends, height=0.7, **_look(index, name))
            ends = [end + part for end, part in zip(ends, parts, strict=True)]
        axes.set_xlim(0, most)
        axes.set_xlabel(unit)
        return _finished(figure, f"Bar chart: {title}", rows)


def _grouped_bars(
    title: str, unit: str, rows: Sequence[_Row], series: Mapping[str, Sequence[float]], *, chance: float
) -> Markup:
    """Draw one bar per group and series, in percent, with a line at chance."""
    with _axes(len(rows) * len(series), len(series), rows) as (figure, axes):
        height = 0.8 / len(series)
        for index, (name, values) in enumerate(series.items()):
            places = [place + (index - (len(series) - 1) / 2) * height for place in range(len(rows))]
            axes.barh(places, values, height=0.9 * height, **_look(index, name))
        axes.axvline(chance, color=_INK, linewidth=1, linestyle="--")
        axes.set_xlim(0, 100)
        axes.set_xlabel(unit)
        return _finished(figure, f"Bar chart: {title}", rows)


def _length_ranges(unit: str, rows: Sequence[_Row]) -> Markup:
    """Draw a line per group and view from the 5th to the 95th percentile, with a mark at the median."""
    lengths = [row.stats.lengths for row in rows]
    views = list(dict.fromkeys(view for one in lengths for view in one))
    with _axes(len(rows) * len(views), len(views), rows) as (figure, axes):
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
        return _finished(figure, "Chart: prompt lengths by view", rows)


@contextmanager
def _axes(bars: int, entries: int, rows: Sequence[_Row]) -> Iterator[tuple[Figure, Any]]:
    """Yield a figure as high as its bars need, with the groups from top to bottom and room for a legend."""
    with mpl.rc_context(STYLE):
        lines = sum(1 + 1.2 * row.name.count("\n") for row in rows)
        height = 0.9 + 0.17 * max(bars, 1.6 * lines) + 0.2 * entries
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        axes = figure.add_subplot()
        axes.set_yticks(range(len(rows)), [row.name for row in rows])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.grid(axis="x", color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.xaxis.set_major_locator(mpl.ticker.MaxNLocator(6, integer=True))
        axes.xaxis.set_major_formatter(mpl.ticker.StrMethodFormatter("{x:,.0f}"))
        yield figure, axes


def _finished(figure: Figure, what: str, rows: Sequence[_Row]) -> Markup:
    figure.legend(loc="outside upper left", frameon=False, handlelength=1.4)
    return inline_svg(figure, f"{what} of {', '.join(' '.join(row.name.split()) for row in rows)}")


def _look(index: int, name: str) -> dict[str, Any]:
    return {
        "label": legend_name(name),
        "color": COLOURS[index % len(COLOURS)],
        "hatch": HATCHES[index % len(HATCHES)],
        "edgecolor": "white",
        "linewidth": 0,
    }
