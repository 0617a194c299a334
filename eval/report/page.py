"""Assembles the page: what the template shows is worked out here, how it looks is the template's business.

Whatever a model, a dataset or a recipe says is escaped by the template engine; only the plots, which are made
here, enter the page as markup.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment
from markupsafe import Markup

from d2e_sft.html.pages import page_environment
from eval.compare import AVERAGE, Comparison, Row, compare_runs
from eval.label_shares import shares_in_percent
from eval.report.plots import Curve, bar_chart, line_chart, share_chart
from eval.report.samples import choose_samples, is_right
from eval.report.shown import shown
from eval.report.training import CURVES, Training, read_training
from eval.runs import ScoredRun
from eval.tables import collapses, p_value, percent, points


@dataclass(frozen=True)
class _RunDetails:
    run: ScoredRun
    recipe: str | None
    training: Training | None


def write_report(runs: Sequence[ScoredRun], out: Path, *, samples: int = 6, title: str | None = None) -> None:
    """Write one self-contained HTML page about the runs.

    Args:
        runs: from `eval.runs.load_runs`; differences are to the first of them.
        out: the file; its folder is made, an earlier page is replaced.
        samples: how many samples to show in full.
        title: heading of the page; by default it names the benchmark.

    Raises:
        UserError: a run's trainer state is damaged.
    """
    page = render_page(runs, samples=samples, title=title)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(page, encoding="utf-8")


def render_page(runs: Sequence[ScoredRun], *, samples: int = 6, title: str | None = None) -> str:
    """The page of `write_report` as text."""
    comparison = compare_runs(runs)
    details = [_RunDetails(run, _recipe(run.path), read_training(run.path)) for run in runs]
    context = {
        "title": title or f"Event reasoning on {comparison.bench}",
        "comparison": comparison,
        "details": details,
        "bars": _bars(comparison),
        "shares": _shares(comparison),
        "collapses": collapses(comparison),
        "curves": _curves(details),
        "samples": choose_samples(runs, samples),
    }
    return _environment().get_template("page.html").render(context)


def _environment() -> Environment:
    environment = page_environment(Path(__file__).parent)
    environment.filters.update(percent=percent, points=points, p_value=p_value, shares=shares_in_percent)
    environment.filters.update(share=_share, letter=_letter, shown=shown)
    environment.tests["right"] = is_right
    return environment


def _bars(comparison: Comparison) -> list[Markup]:
    groups = [_group_name(row) for row in comparison.rows]
    charts = {"mean": "Mean of EM and F1", "exact_match": "Exact match", "f1": "Token-level F1"}
    return [
        bar_chart(
            title,
            groups,
            comparison.labels,
            [[getattr(cell, metric) for cell in row.cells] for row in comparison.rows],
        )
        for metric, title in charts.items()
    ]


def _group_name(row: Row) -> str:
    if row.dataset == "all":
        return "all"
    return f"{row.dataset}\n{row.relation}" + ("" if row.dataset == AVERAGE else f" · {row.format}")


def _shares(comparison: Comparison) -> Markup | None:
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


def _curves(details: Sequence[_RunDetails]) -> list[Markup]:
    charts = []
    for key, title in CURVES.items():
        curves = [
            Curve(index, one.run.label, one.training.curves[key])
            for index, one in enumerate(details)
            if one.training is not None and key in one.training.curves
        ]
        if curves:
            charts.append(line_chart(title, curves))
    return charts


def _recipe(run: Path) -> str | None:
    path = run / "recipe.yaml"
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else None


def _share(fraction: float) -> str:
    return f"{100 * fraction:.1f}"


def _letter(index: int) -> str:
    return chr(ord("A") + index)
