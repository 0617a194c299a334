"""How a report opens: the verdict in a sentence, and a few large numbers.

Both are about one run against the first: the `leader`, or without a decided gain the run that `presented` finds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from d2e_sft.util.table import percent
from eval.compare.compare import Block, Comparison
from eval.compare.verdicts import is_about_conflict, main_change, main_verdicts, subset_changes, subset_verdicts
from eval.score.frame import AVERAGE, GAP
from eval.score.statistics import Difference


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
    gap = [] if part is None else _score("habit gap in points, aligned − conflict", part, labels, "accuracy", GAP)
    if part is not None and is_about_conflict(comparison):
        name, average = "accuracy on conflict rows", " (average)" * (part.name == (AVERAGE,))
        shown = [*_score(name + average, part, labels, "accuracy", "conflict"), *gap]
        change, verdicts = subset_changes(part, run).get("conflict"), subset_verdicts(comparison)
        alone = f"{run} answers {shown[0].value} of the conflict rows right"
        rows = f"{seeds} seeds of " * bool(seeds) + " + ".join(f"{size:,} {name}" for name, size in part.sizes.items())
        size = LargeNumber(f"{sum(part.sizes.values()):,}", "", f"rows: {rows}")
    else:
        block, measure = comparison.main
        main, name = _score(measure, block, labels, measure), measure
        shown, suffix = main, f" in {measure}"
        if not comparison.is_by_measures:
            name, suffix = "mean of EM and F1", ""
            second = gap or _score("token-level F1", block, labels, "f1")
            shown = [*_score("exact match", block, labels, "exact_match"), *second]
        change, verdicts = main_change(comparison, run) if place else None, main_verdicts(comparison)
        alone = f"{run} scores {main[0].value}{suffix} on {comparison.size}"
        size = LargeNumber(f"{block.sizes['']:,}", "", comparison.unit)
    sentence = verdicts[run].partition(": ")[0] if place else alone
    return Headline(sentence, [*shown, *_difference(name, labels[0], change), *_refusals(comparison, labels), size])


def _refusals(comparison: Comparison, labels: Sequence[str]) -> list[LargeNumber]:
    """How often rows that lack the answer are refused, and the others wrongly."""
    block = comparison.refusals
    if block is None or (refusal := block.score(labels[-1], "refusal")) is None:
        return []
    lacking = _score(f"refused of the {refusal.n:,} rows that lack the answer", block, labels, "refusal")
    return [*lacking, *_score("refused wrongly, of the other rows", block, labels, "false_refusal")]


def _score(name: str, block: Block, labels: Sequence[str], measure: str, subset: str = "") -> list[LargeNumber]:
    """The presented run's score, and the first one's in words; nothing if one of them has none."""
    known = [score for label in labels if (score := block.score(label, measure, subset)) is not None]
    if len(known) < len(labels):
        return []
    unit = "" if subset == GAP else " %"
    caption = f"{labels[-1]}: {name} ({labels[0]}: {percent(known[0].mean)}{unit})"
    bounds = f"[{percent(known[-1].low)}, {percent(known[-1].high)}]"
    return [LargeNumber(percent(known[-1].mean) + unit, bounds, caption if len(labels) > 1 else name)]


def _difference(name: str, first: str, change: Difference | None) -> list[LargeNumber]:
    if change is None:
        return []
    bounds = f"[{100 * change.low:+z.1f}, {100 * change.high:+z.1f}]"
    tone = ("gain" if change.mean > 0 else "loss") * change.significant
    return [LargeNumber(f"{100 * change.mean:+z.1f}", bounds, f"points against {first}, paired: {name}", tone)]
