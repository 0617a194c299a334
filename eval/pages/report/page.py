"""Assemble the report page: of runs on rows, or of results with measures.

The template engine escapes all texts of models, datasets and recipes. Only plots and the sample browser's data, which
is escaped separately, enter the page as markup.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup

from d2e_sft.data.prompts import NOT_OF_EVENTS
from d2e_sft.util.files import write_whole
from d2e_sft.util.html import pages
from d2e_sft.util.table import Table, percent
from eval.compare.compare import Block, Comparison, compare_results
from eval.compare.figures import Part
from eval.compare.judged import RunPatterns, read_patterns
from eval.compare.runs import MeasuredRun, ScoredRun, presented
from eval.compare.tables import comparison_tables, seed_table, small_note, tables_by_part
from eval.compare.verdicts import (
    cost_line,
    is_about_conflict,
    leader,
    main_change,
    main_verdicts,
    subset_changes,
    subset_verdicts,
    verdict_words,
    verdicts,
)
from eval.pages.report.facts import curves, instructions, measured_facts, read_training, run_facts
from eval.pages.report.patterns import pattern_chart, pattern_figure, pattern_table
from eval.pages.report.plots import MOST_MEASURES, score_dots, subset_chart
from eval.pages.report.samples import (
    browser_data,
    change_table,
    check_datasets,
    choose_samples,
    packed,
    shown,
    without_texts,
)
from eval.score.faithfulness import contains_answer
from eval.score.frame import AVERAGE, GAP
from eval.score.predictions import RIGHT
from eval.score.statistics import Difference, score_of

_MOST_ITEMS = 200  # listed for each run
_HEADINGS: dict[Part, tuple[str, str, str]] = {  # anchor, name in the contents, and heading of the tables
    "groups": ("scores", "Scores", "Scores"),
    "faithfulness": ("faithfulness", "Faithfulness", "Do answers keep to their contexts?"),
    "subsets": ("subsets", "Scores by subset", "Scores by subset"),
    "kinds": ("kinds", "Kinds of question", "Scores by kind of question"),
}


@dataclass(frozen=True)
class ReportOptions:
    """Options of the page, like those of `d2e report`; None means all samples, and the benchmark's name as title."""

    samples: int = 5
    browse: int | None = None
    no_texts_of: Collection[str] = ()
    title: str | None = None


class ReportSection(NamedTuple):
    """A part of the page: its anchor, its name in the contents, its heading, and what is below it in this order."""

    anchor: str
    name: str
    heading: str
    note: str = ""
    figure: Markup | None = None
    tables: Sequence[Table] = ()
    folded: str = ""  # the line to click on for the tables; empty if they are open


def write_report(
    runs: Sequence[ScoredRun | MeasuredRun],
    out: Path,
    options: ReportOptions | None = None,
    comparison: Comparison | None = None,
) -> None:
    """Write one self-contained HTML page about the runs of `load_results`, or of `load_seeds`, seed by seed.

    A `comparison` of these runs is used if it exists already. UserError if a file of a run is damaged, or an option
    names an unknown dataset.
    """
    write_whole(out, render_page(runs, options, comparison))


def render_page(
    runs: Sequence[ScoredRun | MeasuredRun], options: ReportOptions | None = None, comparison: Comparison | None = None
) -> str:
    options = options or ReportOptions()
    rows = [run for run in runs if isinstance(run, ScoredRun)]
    comparison = comparison or compare_results(runs)
    seeds, first = comparison.seeds, [run for run in runs if run.seed == runs[0].seed]  # a run of each label
    if rows and not seeds:
        check_datasets(options.no_texts_of, rows[0])
    context: dict[str, Any] = {
        "comparison": comparison,
        "labels": comparison.labels,
        "headline": headline_of(comparison, leader(comparison) or presented(first)),
        "runs": [f"{run.label}, seed {run.seed}" if seeds else run.label for run in runs],
        "verdicts": verdicts(comparison),
        "verdict_words": verdict_words(comparison),
        "notes": [*filter(None, [small_note(comparison), cost_line(comparison), comparison.decoding.line()])],
        "dots": score_dots(comparison),
        "title": options.title or (_title(comparison) if rows else f"Results on {comparison.bench}"),
    }
    if rows and not seeds:
        context |= _about_rows(rows, comparison, options)
        template = "page.html"
    elif rows:
        context |= _about_seeds(rows, comparison)
        template = "measures.html"
    else:
        measured = [run for run in runs if isinstance(run, MeasuredRun)]
        drawn, total = min(MOST_MEASURES, len(comparison.scores.measure.unique())), comparison.scores.measure.nunique()
        scores = ReportSection("scores", "Scores", "Scores", tables=comparison_tables(comparison))
        context |= {
            "caption": f"The first {drawn} of {total} measures." * (drawn < total),
            "sections": [scores, *([] if seeds else changed_items(measured, comparison))],
            "facts": measured_facts(measured),
        }
        template = "measures.html"
    return pages.render_page(Path(__file__).with_name(template), {"shown": shown}, **context)


def _about_rows(runs: Sequence[ScoredRun], comparison: Comparison, options: ReportOptions) -> dict[str, Any]:
    patterns = {run.label: errors for run in runs if (errors := read_patterns(run)) is not None}
    trainings = [read_training(run) for run in runs]
    prompts = instructions(runs)
    readable = without_texts(runs, options.no_texts_of)
    browser = None
    if options.browse != 0:
        data = browser_data(readable, patterns, prompts, options.browse)
        text, kind = packed(data)
        browser = {"text": Markup(text), "type": kind, "held": len(data["samples"]), "all": len(runs[0].predictions)}
    charts = curves(comparison.labels, trainings)
    open_parts, by_group = _sections(comparison)
    last = [("samples", "Samples", True), ("errors", "Errors", bool(patterns)), ("curves", "Training", bool(charts))]
    return {
        "groups": comparison.groups,
        "averages": any(block.name[0] == AVERAGE for block in comparison.groups),
        "subset_chart": subset_chart(comparison),
        "sections": open_parts,
        "by_group": by_group,
        "contents": [
            ("reading", "Use of the context") if comparison.is_about_subsets else ("groups", "Picture"),
            *((part.anchor, part.name) for part in open_parts),
            *[("by-group", "Scores by group")] * bool(by_group),
            *((anchor, name) for anchor, name, is_there in last if is_there),
            ("runs", "Recipes"),
        ],
        "patterns": patterns,
        "error_section": _errors(runs, patterns) if patterns else None,
        "curves": charts,
        "trained": [f"{run.label} with {t.terms}" for run, t in zip(runs, trainings, strict=True) if t and t.terms],
        "changes": change_table(runs),
        "samples": choose_samples(readable, options.samples),
        "contains_answer": contains_answer,
        "browser": browser,
        "left_out": sorted(options.no_texts_of),
        "facts": run_facts(runs, trainings),
        "instructions": prompts,
        "details": [(run.label, _recipe(run.home)) for run in runs],
    }


def _about_seeds(runs: Sequence[ScoredRun], comparison: Comparison) -> dict[str, Any]:
    chart = subset_chart(comparison) if comparison.is_about_subsets else None
    measured = f"Accuracy ({RIGHT})" if chart else "Mean of exact match and F1"
    open_parts, by_group = _sections(comparison)
    scores = ReportSection("seeds", "Seeds", "Scores of each seed", tables=[seed_table(comparison)])
    return {
        "dots": chart or score_dots(comparison),
        "caption": f"{measured} with {comparison.intervals}{', cut at 0 and 100. Small dots: seeds' * bool(chart)}.",
        "sections": [*open_parts, scores, *by_group],
        "facts": run_facts(runs, [read_training(run) for run in runs]),
    }


def _title(comparison: Comparison) -> str:
    relations = {relation for dataset, relation, _ in (block.name for block in comparison.groups) if dataset != "all"}
    return f"{'Answers' if relations <= set(NOT_OF_EVENTS) else 'Event reasoning'} on {comparison.bench}"


def _sections(comparison: Comparison) -> tuple[list[ReportSection], list[ReportSection]]:
    """The sections of tables, and those that are folded: scores by group, if the benchmark is about subsets."""
    chart = None if comparison.is_about_subsets else subset_chart(comparison)
    parts = [
        ReportSection(*_HEADINGS[name], figure=chart if name == "subsets" else None, tables=tables)
        for name, tables in tables_by_part(comparison, detail=True).items()
    ]
    folded = [part for part in parts if part.anchor == "scores" and comparison.is_about_subsets]
    return [part for part in parts if part not in folded], folded


def _errors(runs: Sequence[ScoredRun], patterns: dict[str, RunPatterns]) -> ReportSection:
    methods = {label: run_patterns.method for label, run_patterns in patterns.items()}
    ways = (
        f"{label}: {'estimated by rule' if method == 'by rule' else f'by the judge {method}'}"
        for label, method in methods.items()
    )
    lacking = [run.label for run in runs if run.label not in patterns]
    parts = [
        "Why wrong answers are wrong, in percent of each run's own wrong answers; a run that is wrong less often has "
        f"a smaller n. {'; '.join(ways)}.",
        "By rule, errors are counted that stay the same without the context. This is not the paper's neglect, and "
        "only a judge can tell a wrong place." * ("by rule" in methods.values()),
        "The runs' patterns were found in different ways: do not compare them." * (len({*methods.values()}) > 1),
        f"Not known for {', '.join(lacking)}." * bool(lacking),
    ]
    chart, table = pattern_chart(pattern_figure(runs, patterns), patterns), pattern_table(runs, patterns)
    return ReportSection("errors", "Errors", "Error patterns", " ".join(filter(None, parts)), chart, [table])


def _recipe(run: Path) -> str | None:
    path = run / "recipe.yaml"
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else None


def changed_items(runs: Sequence[MeasuredRun], comparison: Comparison) -> list[ReportSection]:
    """For each run after the first: the items of the headline that changed, the largest changes first."""
    _, name = comparison.main
    first, *others = [next(measure for measure in run.measures if measure.name == name) for run in runs]

    def score(counts: tuple[float, ...]) -> float:
        return score_of(first.form, [counts]) or 0.0

    sections = []
    for run, measure in zip(runs[1:], others, strict=True):
        pairs = [(item, score(counts), score(measure.counts[item])) for item, counts in first.counts.items()]
        moved = sorted((pair for pair in pairs if pair[1] != pair[2]), key=lambda pair: -abs(pair[2] - pair[1]))
        better = sum(after > before for _, before, after in moved)
        note = f"{name}: {better:,} better, {len(moved) - better:,} worse, {len(pairs) - len(moved):,} as before."
        folded = f"The {_MOST_ITEMS} largest of {len(moved):,} changes" if len(moved) > _MOST_ITEMS else "All changes"
        rows = [(item, f"{before:.2f}", f"{after:.2f}") for item, before, after in moved[:_MOST_ITEMS]]
        tables = [Table.of([comparison.unit, runs[0].label, run.label], rows)] if rows else []
        heading = f"{run.label} against {runs[0].label}, one by one"
        sections.append(ReportSection("", "", heading, note, tables=tables, folded=folded))
    return sections


# The opening: a verdict in a sentence, and a few large numbers -------------------------------------------------------
# It is about one run against the first: the `leader`, or without a decided gain the run that `presented` finds.


class LargeNumber(NamedTuple):
    """A number to show large, with its interval in brackets (empty without one) and what it is about.

    The `tone` of a decided difference is `gain` or `loss`.
    """

    value: str
    interval: str
    about: str
    tone: str = ""


class Headline(NamedTuple):
    sentence: str
    numbers: Sequence[LargeNumber]


def headline_of(comparison: Comparison, place: int) -> Headline:
    """About conflict rows if the benchmark is about subsets, otherwise about all samples or the first measure."""
    labels = [comparison.labels[0], comparison.labels[place]] if place else [comparison.labels[0]]
    part, run, seeds = comparison.headline, labels[-1], len(comparison.seeds)
    gap = [] if part is None else _large("habit gap in points, aligned − conflict", part, labels, "accuracy", GAP)
    if part is not None and is_about_conflict(comparison):
        name, average = "accuracy on conflict rows", " (average)" * (part.name == (AVERAGE,))
        shown = [*_large(name + average, part, labels, "accuracy", "conflict"), *gap]
        change, sentences = subset_changes(part, run).get("conflict"), subset_verdicts(comparison)
        alone = f"{run} answers {shown[0].value} of the conflict rows right"
        rows = f"{seeds} seeds of " * bool(seeds) + " + ".join(f"{size:,} {name}" for name, size in part.sizes.items())
        size = LargeNumber(f"{sum(part.sizes.values()):,}", "", f"rows: {rows}")
    else:
        block, measure = comparison.main
        main, name = _large(measure, block, labels, measure), measure
        shown, suffix = main, f" in {measure}"
        if not comparison.is_by_measures:
            name, suffix = "mean of EM and F1", ""
            second = gap or _large("token-level F1", block, labels, "f1")
            shown = [*_large("exact match", block, labels, "exact_match"), *second]
        change, sentences = main_change(comparison, run) if place else None, main_verdicts(comparison)
        alone = f"{run} scores {main[0].value}{suffix} on {comparison.size}"
        size = LargeNumber(f"{block.sizes['']:,}", "", comparison.unit)
    sentence = sentences[run].partition(": ")[0] if place else alone
    return Headline(sentence, [*shown, *_change(name, labels[0], change), *_refusals(comparison, labels), size])


def _refusals(comparison: Comparison, labels: Sequence[str]) -> list[LargeNumber]:
    """How often rows that lack the answer are refused, and the others wrongly."""
    block = comparison.refusals
    if block is None or (refusal := block.score(labels[-1], "refusal")) is None:
        return []
    lacking = _large(f"refused of the {refusal.n:,} rows that lack the answer", block, labels, "refusal")
    return [*lacking, *_large("refused wrongly, of the other rows", block, labels, "false_refusal")]


def _large(name: str, block: Block, labels: Sequence[str], measure: str, subset: str = "") -> list[LargeNumber]:
    """The presented run's score, and the first one's in words; nothing if one of them has none."""
    known = [score for label in labels if (score := block.score(label, measure, subset)) is not None]
    if len(known) < len(labels):
        return []
    unit = "" if subset == GAP else " %"
    caption = f"{labels[-1]}: {name} ({labels[0]}: {percent(known[0].mean)}{unit})"
    bounds = f"[{percent(known[-1].low)}, {percent(known[-1].high)}]"
    return [LargeNumber(percent(known[-1].mean) + unit, bounds, caption if len(labels) > 1 else name)]


def _change(name: str, first: str, change: Difference | None) -> list[LargeNumber]:
    if change is None:
        return []
    bounds = f"[{100 * change.low:+z.1f}, {100 * change.high:+z.1f}]"
    tone = ("gain" if change.mean > 0 else "loss") * change.significant
    return [LargeNumber(f"{100 * change.mean:+z.1f}", bounds, f"points against {first}, paired: {name}", tone)]
