"""Which charts the page has, and what each is drawn from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from eval.compare.compare import AVERAGE, Comparison, Row
from eval.pages.report.plots import FEWEST_AXES, Curve, bar_chart, line_chart, outer_ring, radar_chart, share_chart
from eval.pages.report.training import CURVES, Training


@dataclass(frozen=True)
class Radar:
    """A radar, and what a reader has to know to read it."""

    chart: Markup
    caption: str


def radars(comparison: Comparison) -> list[Radar]:
    """One over dataset × relation, one over relations; each only where it has three axes, and never the same twice."""
    groups = [row for row in comparison.rows if row.dataset not in ("all", AVERAGE)]
    relations = _relation_rows(comparison)
    charts = []
    if len(groups) >= FEWEST_AXES:
        named = Counter((row.dataset, row.relation) for row in groups)
        several = [row.format if named[row.dataset, row.relation] > 1 else None for row in groups]
        names = [
            "\n".join(filter(None, [row.dataset, *row.relation.split("_"), fmt]))
            for row, fmt in zip(groups, several, strict=True)
        ]
        charts.append(_radar(comparison, groups, names, "An axis is a dataset and relation."))
    if len(relations) >= FEWEST_AXES and len(relations) < len(groups):
        averaged = "An axis is a relation, the plain average of its datasets."
        charts.append(_radar(comparison, relations, [row.relation.replace("_", "\n") for row in relations], averaged))
    return charts


def _radar(comparison: Comparison, rows: Sequence[Row], names: Sequence[str], axis: str) -> Radar:
    scores = [[cell.mean.mean for cell in row.cells] for row in rows]
    sizes = sorted(row.n for row in rows)
    n = f"{sizes[0]:,}" if sizes[0] == sizes[-1] else f"{sizes[0]:,} to {sizes[-1]:,}"
    return Radar(
        radar_chart("Mean of EM and F1", names, comparison.labels, scores),
        f"Mean of EM and F1. {axis} n = {n} samples an axis. All axes run from 0 in the middle to "
        f"{outer_ring(scores)} percent at the rim; the bars below have the intervals.",
    )


def _relation_rows(comparison: Comparison) -> list[Row]:
    """A relation's average, or its only group; in order of appearance."""
    rows: dict[str, Row] = {}
    for row in comparison.rows:
        if row.dataset != "all":
            rows[row.relation] = row  # averages come last
    return list(rows.values())


def bars(comparison: Comparison) -> list[Markup]:
    """The mean, EM and F1 of each row with their intervals."""
    groups = [_group_name(row) for row in comparison.rows]
    metrics = {"mean": "Mean of EM and F1", "exact_match": "Exact match", "f1": "Token-level F1"}
    return [
        bar_chart(
            title,
            groups,
            comparison.labels,
            [[getattr(cell, metric) for cell in row.cells] for row in comparison.rows],
        )
        for metric, title in metrics.items()
    ]


def _group_name(row: Row) -> str:
    if row.dataset == "all":
        return "all"
    return f"{row.dataset}\n{row.relation}" + ("" if row.dataset == AVERAGE else f" · {row.format}")


def shares(comparison: Comparison) -> Markup | None:
    """Predicted labels beside the gold ones, where there is nli."""
    rows = {
        f"{row.dataset} · {row.relation}": {
            "gold": row.gold_shares,
            **{
                label: cell.label_shares
                for label, cell in zip(comparison.labels, row.cells, strict=True)
                if cell.label_shares
            },
        }
        for row in comparison.rows
        if row.gold_shares
    }
    return share_chart(rows) if rows else None


def curves(labels: Sequence[str], trainings: Sequence[Training | None]) -> list[Markup]:
    """What runs logged while they trained, a chart a value."""
    charts = []
    for key, title in CURVES.items():
        drawn = [
            Curve(index, label + suffix, points[key], marked=bool(suffix))
            for index, (label, training) in enumerate(zip(labels, trainings, strict=True))
            if training is not None
            for suffix, points in (("", training.curves), (", held out", training.held_out))
            if key in points
        ]
        if drawn:
            charts.append(line_chart(title, drawn))
    return charts
