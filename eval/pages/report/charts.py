"""The report's charts of scores, labels and training curves."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from d2e_sft.util.html.figures import COLOURS, HATCHES, inline_svg
from eval.compare.compare import Comparison
from eval.compare.figures import LABELS
from eval.pages.report.plots import Curve, Part, bar_figure, line_chart, stacked_figure
from eval.pages.report.training import CURVES, LOSSES, Training
from eval.score.subsets import AVERAGE

_LABEL_PARTS = [
    Part(label, "no label", "#bbbbbb", "") if label == "other" else Part(label, label, COLOURS[index], HATCHES[index])
    for index, label in enumerate(LABELS)
]


def bars(comparison: Comparison) -> Markup:
    """The mean of EM and F1 of each row with its interval."""
    names = []
    for row in comparison.rows:
        name = f"{row.dataset}\n{row.relation}" + ("" if row.dataset == AVERAGE else f" · {row.format}")
        names.append("all" if row.dataset == "all" else name)
    scores = [[cell.mean for cell in row.cells] for row in comparison.rows]
    figure = bar_figure("Mean of EM and F1", names, comparison.labels, scores)
    labels = ", ".join(comparison.labels)
    return inline_svg(figure, f"Bar chart: Mean of EM and F1 of {labels}, with 95 % intervals")


def shares(comparison: Comparison) -> Markup | None:
    """Gold and predicted nli labels, stacked; None without nli."""
    groups = {}
    for row in comparison.rows:
        if row.gold_shares:
            runs = zip(comparison.labels, row.cells, strict=True)
            predicted = {label: cell.label_shares for label, cell in runs if cell.label_shares}
            groups[f"{row.dataset} · {row.relation}"] = {"gold": row.gold_shares, **predicted}
    if not groups:
        return None
    names = ", ".join(dict.fromkeys(name for own in groups.values() for name in own))
    description = f"Stacked bars: shares of the predicted nli labels of {names}"
    return inline_svg(stacked_figure(groups, _LABEL_PARTS, "predicted labels, percent", middle=True), description)


def curves(labels: Sequence[str], trainings: Sequence[Training | None]) -> list[Markup]:
    """A chart for each logged value; losses with different terms get separate charts."""
    charts = []
    runs = [(index, label, one) for index, (label, one) in enumerate(zip(labels, trainings, strict=True)) if one]
    # A cross-entropy that is the whole loss is drawn once.
    repeats = [all(own.get("ce") == own.get("loss") for own in (one.curves, one.held_out)) for _, _, one in runs]
    every_term = list(dict.fromkeys(training.terms for _, _, training in runs))
    for key, title in CURVES.items():
        separate = key in LOSSES and len(every_term) > 1
        for terms in every_term if separate else [None]:
            drawn = [
                Curve(index, label + suffix, points[key], marked=bool(suffix))
                for (index, label, training), is_loss in zip(runs, repeats, strict=True)
                if (terms is None or training.terms == terms) and not (key == "ce" and is_loss)
                for suffix, points in (("", training.curves), (", held out", training.held_out))
                if key in points
            ]
            if drawn:
                charts.append(line_chart(f"{title} ({terms})" if terms else title, drawn))
    return charts
