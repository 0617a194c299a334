"""Assemble the report pages: of runs on rows, and of results with measures.

The template engine escapes all texts of models, datasets and recipes. Only plots and the sample browser's data, which
is escaped separately, enter the page as markup.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from d2e_sft.data.prompts import NOT_OF_EVENTS
from d2e_sft.util.files import write_whole
from d2e_sft.util.html import pages
from d2e_sft.util.html.figures import inline_svg
from eval.compare.compare import Comparison, compare_runs
from eval.compare.error_patterns import read_patterns
from eval.compare.measures.measure import MeasureComparison
from eval.compare.measures.runs import MeasuredRun, compare_runs_by_measures
from eval.compare.measures.tables import measure_table, measure_verdicts
from eval.compare.runs import ScoredRun, presented
from eval.compare.subset_tables import kind_tables, small_note, subset_comparison_tables
from eval.compare.tables import context_table, faithfulness_tables, gain_table, label_table, score_table
from eval.compare.verdicts import verdict_words, verdicts
from eval.pages.report.browser import browser_data, change_table, packed
from eval.pages.report.facts import instructions, run_facts
from eval.pages.report.headline import headline_of, headline_of_measures
from eval.pages.report.patterns import pattern_chart, pattern_figure, pattern_table
from eval.pages.report.plots import MOST_MEASURES, label_shares, measures_figure, score_dots
from eval.pages.report.reading import subset_chart
from eval.pages.report.samples import check_datasets, choose_samples, shown, without_texts
from eval.pages.report.training import curves, read_training
from eval.score.counts import score_of
from eval.score.faithfulness import contains_answer

_MOST_ITEMS = 200  # listed for each run
_FACTS = ("model", "model_name", "decoder", "alpha", "plausibility", "options", "max_samples", "seed", "date")


@dataclass(frozen=True)
class ReportOptions:
    """Options of the page, like those of `d2e report`; None means all samples, and the benchmark's name as title."""

    samples: int = 5
    browse: int | None = None
    no_texts_of: Collection[str] = ()
    title: str | None = None


def write_report(
    runs: Sequence[ScoredRun], out: Path, options: ReportOptions | None = None, comparison: Comparison | None = None
) -> None:
    """Write one self-contained HTML page about the runs of `load_runs`; differences are to the first.

    A `comparison` of these runs is used if it exists already.

    Raises:
        UserError: a file of a run is damaged, or an option names an unknown dataset.
    """
    write_whole(out, render_page(runs, options, comparison))


def render_page(
    runs: Sequence[ScoredRun], options: ReportOptions | None = None, comparison: Comparison | None = None
) -> str:
    """The page as text."""
    options = options or ReportOptions()
    check_datasets(options.no_texts_of, runs[0])
    comparison = comparison or compare_runs(runs)
    patterns = {run.label: found for run in runs if (found := read_patterns(run)) is not None}
    trainings = [read_training(run.path) for run in runs]
    told = instructions(runs)
    readable = without_texts(runs, options.no_texts_of)
    subsets = comparison.subsets
    browser = None
    if options.browse != 0:
        data = browser_data(readable, patterns, told, options.browse)
        text, kind = packed(data)
        browser = {"text": Markup(text), "type": kind, "held": len(data["samples"]), "all": len(runs[0].predictions)}
    context: dict[str, Any] = {
        "title": options.title or _title(comparison),
        "comparison": comparison,
        "headline": headline_of(comparison, presented(runs)),
        "contains_answer": contains_answer,
        "tables": _tables(comparison),
        "subset_chart": None if subsets is None else subset_chart(subsets),
        "verdicts": verdicts(comparison),
        "verdict_words": verdict_words(comparison),
        "small_note": small_note(comparison.small_subsets),
        "dots": score_dots(comparison),
        "shares": label_shares(comparison),
        "patterns": patterns,
        "pattern_table": pattern_table(runs, patterns),
        "pattern_chart": pattern_chart(pattern_figure(runs, patterns), patterns),
        "curves": curves(comparison.labels, trainings),
        "trained": [
            f"{run.label} with {one.terms}" for run, one in zip(runs, trainings, strict=True) if one and one.terms
        ],
        "changes": change_table(runs),
        "samples": choose_samples(readable, options.samples),
        "browser": browser,
        "left_out": sorted(options.no_texts_of),
        "facts": run_facts(runs, trainings),
        "instructions": told,
        "details": [(run.label, _recipe(run.home)) for run in runs],
    }
    context["contents"] = _contents(comparison, context)
    return pages.render_page(Path(__file__).with_name("page.html"), {"shown": shown}, **context)


def _title(comparison: Comparison) -> str:
    relations = {row.relation for row in comparison.rows if row.dataset != "all"}
    return f"{'Answers' if relations <= set(NOT_OF_EVENTS) else 'Event reasoning'} on {comparison.bench}"


def _tables(comparison: Comparison) -> dict[str, Any]:
    context = context_table(comparison)
    return {
        "scores": score_table(comparison),
        "gains": gain_table(comparison),
        "context": context if len(context.frame) else None,
        "labels": label_table(comparison),
        "faithfulness": faithfulness_tables(comparison, detail=True),
        "kinds": kind_tables(comparison.kinds),
        "subsets": [] if comparison.subsets is None else subset_comparison_tables(comparison.subsets, detail=True),
    }


def _contents(comparison: Comparison, context: dict[str, Any]) -> list[tuple[str, str]]:
    """Anchor and name of each part of the page."""
    by_subset = comparison.is_about_subsets  # folds the parts by group
    parts = [
        ("reading", "Use of the context", by_subset),
        ("groups", "Picture", not by_subset),
        ("subsets", "Scores by subset", by_subset),
        ("kinds", "Kinds of question", by_subset and bool(comparison.kinds)),
        ("faithfulness", "Faithfulness", by_subset and bool(comparison.faithfulness)),
        ("by-group", "Scores by group", by_subset),
        ("scores", "Scores", not by_subset),
        ("differences", "Differences", not by_subset and len(comparison.labels) > 1),
        ("context", "Context", not by_subset and context["tables"]["context"] is not None),
        ("labels", "Labels", not by_subset and context["shares"] is not None),
        ("faithfulness", "Faithfulness", not by_subset and bool(comparison.faithfulness)),
        ("subsets", "Scores by subset", not by_subset and comparison.subsets is not None),
        ("kinds", "Kinds of question", not by_subset and bool(comparison.kinds)),
        ("samples", "Samples", True),
        ("errors", "Errors", bool(context["patterns"])),
        ("curves", "Training", bool(context["curves"])),
        ("runs", "Recipes", True),
    ]
    return [(anchor, name) for anchor, name, there in parts if there]


def _recipe(run: Path) -> str | None:
    path = run / "recipe.yaml"
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else None


@dataclass(frozen=True)
class Changed:
    """Items whose headline score differs from the first run; `listed` has id, score before and after."""

    label: str
    better: int
    worse: int
    listed: Sequence[tuple[str, float, float]]


def write_measures_page(runs: Sequence[MeasuredRun], out: Path, title: str | None = None) -> MeasureComparison:
    """Write one self-contained HTML page that compares the runs with the first one; return the comparison.

    UserError if the runs' results cannot be compared.
    """
    comparison = compare_runs_by_measures(runs)
    labels, facts = ", ".join(comparison.labels), []
    for run in runs:
        told = {name: str(run.scores[name]) for name in _FACTS if run.scores.get(name) not in (None, "", {})}
        facts.append((run.label, {**told, "folder": str(run.folder)}))
    page = pages.render_page(
        Path(__file__).with_name("measures.html"),
        title=title or f"Results on {comparison.bench}",
        comparison=comparison,
        headline=headline_of_measures(comparison, presented(runs)),
        table=measure_table(comparison),
        verdicts=measure_verdicts(comparison),
        picture=inline_svg(measures_figure(comparison), f"{comparison.bench}: scores of {labels}"),
        drawn=min(MOST_MEASURES, len(comparison.rows)),
        changes=changed_items(runs, comparison),
        facts=facts,
    )
    write_whole(out, page)
    return comparison


def changed_items(runs: Sequence[MeasuredRun], comparison: MeasureComparison) -> list[Changed]:
    """The items of the headline that changed from the first run to each other run."""
    name = comparison.rows[0].name
    first, *others = [next(one for one in run.measures if one.name == name) for run in runs]

    def score(counts: tuple[float, ...]) -> float:
        return score_of(first.form, [counts]) or 0.0

    found = []
    for run, measure in zip(runs[1:], others, strict=True):
        pairs = [(item, score(counts), score(measure.counts[item])) for item, counts in first.counts.items()]
        moved = sorted((p for p in pairs if p[1] != p[2]), key=lambda p: -abs(p[2] - p[1]))
        better = sum(after > before for _, before, after in moved)
        found.append(Changed(run.label, better, len(moved) - better, moved[:_MOST_ITEMS]))
    return found
