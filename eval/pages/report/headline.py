"""How a report opens: the result in a sentence, and three or four large numbers.

Both are about one run, at the `place` that `presented` finds, against the first, as the samples are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from d2e_sft.util.table import percent
from eval.compare.compare import Comparison
from eval.compare.figures import corrected_p
from eval.compare.measures.measure import MeasureComparison
from eval.compare.subset_comparison import LESS, MORE, DatasetComparison, RunSubsets
from eval.score.statistics import Difference, Interval
from eval.score.subsets import AVERAGE

_T = TypeVar("_T")


@dataclass(frozen=True)
class LargeNumber:
    """A number to show large, with its interval in brackets (empty without one) and what it is about."""

    value: str
    interval: str
    about: str


@dataclass(frozen=True)
class Headline:
    """The result in a sentence without its full stop, and the numbers."""

    sentence: str
    numbers: Sequence[LargeNumber]


def headline_of(comparison: Comparison, place: int) -> Headline:
    """About conflict rows if the benchmark is about subsets, otherwise about all samples."""
    own = None if comparison.subsets is None else comparison.subsets.headline
    if own is not None and comparison.is_about_subsets and "conflict" in own.sizes:
        return _about_subsets(own, place)
    row, labels = comparison.overall, _two(comparison.labels, place)
    change = replace(row.gains[place - 1].mean, adjusted_p=None) if place else None
    sentence = _on_scores(labels, row.cells[place].mean, change, "", f"{row.n:,} samples")
    exact, f1 = ([getattr(cell, name) for cell in _two(row.cells, place)] for name in ("exact_match", "f1"))
    second = ([] if own is None else _gap(_two(own.runs, place))) or [_share("token-level F1", labels, f1)]
    differences = _difference("mean of EM and F1", labels[0], change)
    shown = [_share("exact match", labels, exact), *second, *differences, LargeNumber(f"{row.n:,}", "", "samples")]
    return Headline(sentence, shown)


def headline_of_measures(comparison: MeasureComparison, place: int) -> Headline:
    """About the first measure."""
    row, labels = comparison.rows[0], _two(comparison.labels, place)
    change = row.changes[place - 1] if place else None
    sentence = _on_scores(labels, row.scores[place], change, f" in {row.name}", f"{row.n:,} {row.unit}")
    differences = _difference(row.name, labels[0], change)
    shown = [_share(row.name, labels, _two(row.scores, place)), *differences, LargeNumber(f"{row.n:,}", "", row.unit)]
    return Headline(sentence, shown)


def _two(values: Sequence[_T], place: int) -> Sequence[_T]:
    """Those of the first run and of the presented one; with one run its own."""
    return [values[0], values[place]] if place else [values[0]]


def _about_subsets(own: DatasetComparison, place: int) -> Headline:
    runs = _two(own.runs, place)
    first, last = runs[0], runs[-1]
    labels, n = [run.label for run in runs], own.sizes["conflict"]
    scores = [run.scores.subsets["conflict"].accuracy for run in runs]
    change = last.changes.get("conflict")
    if change is None:
        sentence = f"{last.label} answers {percent(scores[-1].mean)} % of the conflict rows right"
    else:
        often = f"{_points(change, 'more', 'fewer')} of the conflict rows right than {first.label}"
        often = often if change.mean else f"as many of the conflict rows right as {first.label}"
        told = {MORE: f"it {MORE}", LESS: f"it {LESS}", "not decided": f"not decided with {n:,}"}
        sentence = f"{last.label} answers {often}; {told.get(last.verdict, last.verdict)}"
    average = " (average)" * (own.dataset == AVERAGE)
    rows = " + ".join(f"{size:,} {name}" for name, size in own.sizes.items())
    shown = [
        _share(f"accuracy on conflict rows{average}", labels, scores),
        *_gap(runs),
        *_difference("accuracy on conflict rows", first.label, change),
        LargeNumber(f"{sum(own.sizes.values()):,}", "", f"rows: {rows}"),
    ]
    return Headline(sentence, shown)


def _on_scores(labels: Sequence[str], score: Interval, change: Difference | None, where: str, of: str) -> str:
    if change is None:
        return f"{labels[-1]} scores {percent(score.mean)} %{where} on {of}"
    than = f"{_points(change, 'higher', 'lower')}{where} than" if change.mean else f"the same{where} as"
    decided = f" (p\u00a0{corrected_p(change)})" if change.significant else f"; not decided with {of}"
    return f"{labels[-1]} scores {than} {labels[0]}{decided}"


def _points(change: Difference, more: str, fewer: str) -> str:
    return f"{abs(100 * change.mean):.1f} points {more if change.mean > 0 else fewer}"


def _share(name: str, labels: Sequence[str], scores: Sequence[Interval]) -> LargeNumber:
    """The presented run's score, and the first one's in words."""
    return LargeNumber(f"{percent(scores[-1].mean)} %", _bounds(scores[-1]), name + _first(labels, scores, " %"))


def _gap(runs: Sequence[RunSubsets]) -> list[LargeNumber]:
    gaps = [run.scores.gap for run in runs]
    found = [gap for gap in gaps if gap is not None]
    if len(found) < len(gaps):
        return []
    about = "habit gap in points, aligned − conflict" + _first([run.label for run in runs], found, "")
    return [LargeNumber(percent(found[-1].mean), _bounds(found[-1]), about)]


def _difference(name: str, first: str, change: Difference | None) -> list[LargeNumber]:
    if change is None:
        return []
    bounds = f"[{100 * change.low:+z.1f}, {100 * change.high:+z.1f}]"
    return [LargeNumber(f"{100 * change.mean:+z.1f}", bounds, f"points against {first}, paired: {name}")]


def _bounds(score: Interval) -> str:
    return f"[{percent(score.low)}, {percent(score.high)}]"


def _first(labels: Sequence[str], scores: Sequence[Interval], unit: str) -> str:
    return f" ({labels[0]}: {percent(scores[0].mean)}{unit})" if len(labels) > 1 else ""
