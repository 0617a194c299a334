"""How a report opens: the result in a sentence, and three or four large numbers.

Both are about one run, at the `place` that `presented` finds, against the first, as the samples are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from d2e_sft.util.table import percent
from eval.compare.compare import Block, Comparison, Score
from eval.compare.figures import corrected_p
from eval.compare.verdicts import LESS, MORE, OPEN, main_change, subset_changes, subset_verdict
from eval.score.frame import AVERAGE, GAP
from eval.score.statistics import Difference


@dataclass(frozen=True)
class LargeNumber:
    """A number to show large, with its interval in brackets (empty without one) and what it is about.

    The `tone` of a decided difference is `gain` or `loss`.
    """

    value: str
    interval: str
    about: str
    tone: str = ""


@dataclass(frozen=True)
class Headline:
    sentence: str
    numbers: Sequence[LargeNumber]


def headline_of(comparison: Comparison, place: int) -> Headline:
    """About conflict rows if the benchmark is about subsets, otherwise about all samples or the first measure."""
    labels = [comparison.labels[0], comparison.labels[place]] if place else [comparison.labels[0]]
    own = comparison.headline
    if own is not None and comparison.is_about_subsets and "conflict" in own.sizes:
        return _about_subsets(own, labels, len(comparison.seeds))
    block, measure = comparison.main
    by_measures, of = comparison.is_by_measures, comparison.size
    change = main_change(comparison, labels[-1]) if place else None
    score, where = block.score(labels[-1], measure), f" in {measure}" * by_measures
    assert score is not None
    sentence = f"{labels[-1]} scores {percent(score.mean)} %{where} on {of}"
    if change is not None:
        than = f"{_points(change, 'higher', 'lower')}{where} than" if change.mean else f"the same{where} as"
        decided = f" (p\u00a0{corrected_p(change)})" if change.significant else f"; not decided with {of}"
        sentence = f"{labels[-1]} scores {than} {labels[0]}{decided}"
    shown = _share(measure, block, labels, measure)
    if not by_measures:
        second = _gap(own, labels) if own is not None else []
        shown = [*_share("exact match", block, labels, "exact_match")]
        shown += second or _share("token-level F1", block, labels, "f1")
    differences = _difference(measure if by_measures else "mean of EM and F1", labels[0], change)
    return Headline(sentence, [*shown, *differences, LargeNumber(f"{block.sizes['']:,}", "", comparison.unit)])


def _about_subsets(own: Block, labels: Sequence[str], seeds: int) -> Headline:
    n, of, changes = own.sizes["conflict"], f"{seeds} seeds of " * bool(seeds), subset_changes(own, labels[-1])
    change = changes.get("conflict")
    score = own.score(labels[-1], "accuracy", "conflict")
    if change is None:
        sentence = (
            f"{labels[-1]} answers {percent(None if score is None else score.mean)} % of the conflict rows right"
        )
    else:
        often = f"{_points(change, 'more', 'fewer')} of the conflict rows right than {labels[0]}"
        often = often if change.mean else f"as many of the conflict rows right as {labels[0]}"
        verdict = subset_verdict(changes)
        ends = {MORE: f"it {MORE}", LESS: f"it {LESS}", OPEN: f"not decided with {of}{n:,}"}
        sentence = f"{labels[-1]} answers {often}; {ends.get(verdict, verdict)}"
    rows = of + " + ".join(f"{size:,} {name}" for name, size in own.sizes.items())
    average = " (average)" * (own.name == (AVERAGE,))
    shown = [
        *_share(f"accuracy on conflict rows{average}", own, labels, "accuracy", "conflict"),
        *_gap(own, labels),
        *_difference("accuracy on conflict rows", labels[0], change),
        LargeNumber(f"{sum(own.sizes.values()):,}", "", f"rows: {rows}"),
    ]
    return Headline(sentence, shown)


def _points(change: Difference, more: str, fewer: str) -> str:
    return f"{abs(100 * change.mean):.1f} points {more if change.mean > 0 else fewer}"


def _share(name: str, block: Block, labels: Sequence[str], measure: str, subset: str = "") -> list[LargeNumber]:
    return _number(name, [block.score(label, measure, subset) for label in labels], labels, " %")


def _gap(block: Block, labels: Sequence[str]) -> list[LargeNumber]:
    gaps = [block.score(label, "accuracy", GAP) for label in labels]
    return _number("habit gap in points, aligned − conflict", gaps, labels, "")


def _number(name: str, scores: Sequence[Score | None], labels: Sequence[str], unit: str) -> list[LargeNumber]:
    """The presented run's score, and the first one's in words; nothing if one of them has none."""
    known = [score for score in scores if score is not None]
    if len(known) < len(scores):
        return []
    others = f"{labels[-1]}: {name} ({labels[0]}: {percent(known[0].mean)}{unit})"
    bounds = f"[{percent(known[-1].low)}, {percent(known[-1].high)}]"
    return [LargeNumber(percent(known[-1].mean) + unit, bounds, others if len(labels) > 1 else name)]


def _difference(name: str, first: str, change: Difference | None) -> list[LargeNumber]:
    if change is None:
        return []
    bounds = f"[{100 * change.low:+z.1f}, {100 * change.high:+z.1f}]"
    tone = ("gain" if change.mean > 0 else "loss") * change.significant
    return [LargeNumber(f"{100 * change.mean:+z.1f}", bounds, f"points against {first}, paired: {name}", tone)]
