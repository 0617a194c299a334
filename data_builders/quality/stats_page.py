"""The page of `d2e data stats`: one file, without external parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from d2e_sft.data.sample import NLI_LABELS, RELATIONS
from d2e_sft.util.html.pages import page_environment
from data_builders.quality.stats import GroupStats, Stats
from data_builders.quality.stats_plots import grouped_bars, length_ranges, stacked_bars


@dataclass(frozen=True)
class _Row:
    """A group and the name that tells it from the others on the page."""

    name: str
    stats: GroupStats


def write_page(stats: Stats, out: Path) -> None:
    """Write the page; its folder is made, an earlier page is replaced."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(render_page(stats), encoding="utf-8")


def render_page(stats: Stats) -> str:
    """The page of `write_page` as text."""
    rows = _named(stats.groups)
    environment = page_environment(Path(__file__).parent)
    environment.filters.update(count=_count, percent=_percent)
    return environment.get_template("stats_page.html").render(
        title=f"Event-reasoning data: {', '.join(dict.fromkeys(group.group.data for group in stats.groups))}",
        stats=stats,
        rows=rows,
        nli=[row for row in rows if row.stats.context_free],
        refined=[row for row in rows if row.stats.refined_share is not None],
        plots=_Plots(stats.unit, rows),
    )


class _Plots:
    """Each plot, made when the template asks for it."""

    def __init__(self, unit: str, rows: Sequence[_Row]) -> None:
        self._unit, self._rows = unit, rows

    def rows(self) -> Markup:
        totals = {
            relation.replace("_", " "): [
                sum(n for (found, _), n in row.stats.counts.items() if found == relation) for row in self._rows
            ]
            for relation in RELATIONS
            if any(found == relation for row in self._rows for found, _ in row.stats.counts)
        }
        return stacked_bars("rows by relation", "rows", [row.name for row in self._rows], totals)

    def lengths(self) -> Markup:
        return length_ranges(self._unit, [row.name for row in self._rows], [row.stats.lengths for row in self._rows])

    def refined(self) -> Markup:
        rows = [row for row in self._rows if row.stats.refined_share is not None]
        kept = {"kept by the refiner": [100 * (row.stats.refined_share or 0) for row in rows]}
        return stacked_bars("share of words that the refiner keeps", "percent", [r.name for r in rows], kept, most=100)

    def labels(self) -> Markup:
        rows = [row for row in self._rows if row.stats.context_free]
        shares = {
            label: [100 * r.stats.labels[label] / sum(r.stats.labels.values()) for r in rows] for label in NLI_LABELS
        }
        return stacked_bars("nli labels", "percent", [row.name for row in rows], shares, most=100)

    def context_free(self) -> Markup:
        rows = [row for row in self._rows if row.stats.context_free]
        found = [row.stats.context_free for row in rows if row.stats.context_free]
        series: dict[str, list[float | None]] = {
            "more frequent label": [100 * one.majority_share for one in found],
            "hypothesis alone": [None if one.accuracy is None else 100 * one.accuracy for one in found],
        }
        return grouped_bars(
            "accuracy without the context", "accuracy, percent", [row.name for row in rows], series, chance=50
        )


def _named(groups: Sequence[GroupStats]) -> list[_Row]:
    """Names as short as tells the groups apart: the dataset, with its split and its set where there are several."""
    parts = [(group.group.dataset, group.group.split, group.group.data) for group in groups]
    varied = [True, len({split for _, split, _ in parts}) > 1, len({data for *_, data in parts}) > 1]
    return [
        _Row("\n".join(_two_lines([part for part, shown in zip(one, varied, strict=True) if shown])), group)
        for one, group in zip(parts, groups, strict=True)
    ]


def _two_lines(parts: Sequence[str]) -> list[str]:
    return [parts[0], *([" · ".join(parts[1:])] if parts[1:] else [])]


def _count(number: float) -> str:
    return f"{number:,.0f}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"
