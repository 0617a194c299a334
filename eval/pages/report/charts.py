"""Which charts the page has, and what each is drawn from."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from eval.compare.compare import AVERAGE, Comparison, Row
from eval.pages.report.plots import Curve, bar_chart, line_chart, share_chart
from eval.pages.report.training import CURVES, LOSSES, Training


def bars(comparison: Comparison) -> Markup:
    """The mean of EM and F1 of each row with its interval; what it is the mean of stands in the table."""
    return bar_chart(
        "Mean of EM and F1",
        [_group_name(row) for row in comparison.rows],
        comparison.labels,
        [[cell.mean for cell in row.cells] for row in comparison.rows],
    )


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
    """What runs logged while they trained, a chart a value; losses of other terms are in charts of their own."""
    charts = []
    for key, title in CURVES.items():
        for terms in _terms(key, trainings):
            drawn = [
                Curve(index, label + suffix, points[key], marked=bool(suffix))
                for index, (label, training) in enumerate(zip(labels, trainings, strict=True))
                if training is not None and (terms is None or training.terms == terms)
                for suffix, points in (("", training.curves), (", held out", training.held_out))
                if key in points and not _says_what_the_loss_says(key, training)
            ]
            if drawn:
                charts.append(line_chart(f"{title} ({terms})" if terms else title, drawn))
    return charts


def _terms(key: str, trainings: Sequence[Training | None]) -> list[str | None]:
    """What the values under a key are sums of, where that differs between runs; else one None, for all of them."""
    found = list(dict.fromkeys(training.terms for training in trainings if training is not None))
    return [*found] if key in LOSSES and len(found) > 1 else [None]


def _says_what_the_loss_says(key: str, training: Training) -> bool:
    """Whether the cross-entropy is all of the loss, and its curve is there already."""
    same = training.curves.get("ce") == training.curves.get("loss")
    return key == "ce" and same and training.held_out.get("ce") == training.held_out.get("loss")
