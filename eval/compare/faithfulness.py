"""Free answers of several runs side by side: how far they keep to their contexts, by words and by a judge's verdicts.

Differences are paired by sample, over the samples for which both runs have a value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from eval.compare.judged_answers import read_judged
from eval.compare.runs import ScoredRun
from eval.score.faithfulness import has_free_answer, word_shares
from eval.score.predictions import SampleKey
from eval.score.statistics import Difference, Interval, bootstrap_average, holm, paired_average

WORDS = ("in context", "context recall")
JUDGED = ("supported", "correct")
MEASURES = (*WORDS, *JUDGED)
Name = TypeVar("Name", bound=str)
_Values = Mapping[SampleKey, Mapping[str, float]]


@dataclass(frozen=True)
class RunFaithfulness:
    """One run on one dataset: fractions by measure.

    Attributes:
        scores: without measures that no answer has.
        changes: paired differences to the first run; empty for the first.
    """

    label: str
    scores: dict[str, Interval]
    changes: dict[str, Difference]


@dataclass(frozen=True)
class Faithfulness:
    """All runs on one dataset's free answers, or on those of `all` datasets."""

    dataset: str
    n: int
    runs: tuple[RunFaithfulness, ...]

    def has(self, measures: Sequence[str]) -> bool:
        """Whether some run has one of these measures."""
        return any(name in run.scores for run in self.runs for name in measures)


def compare_faithfulness(runs: Sequence[ScoredRun], *, seed: int = 0) -> tuple[Faithfulness, ...]:
    """Compare free answers to contexts by dataset and, if there are several, over all; empty without such answers."""
    datasets: dict[str, list[SampleKey]] = {}
    for key, prediction in runs[0].predictions.items():
        if has_free_answer(prediction):
            datasets.setdefault(prediction.dataset, []).append(key)
    if not datasets:
        return ()
    if len(datasets) > 1:
        datasets["all"] = [key for keys in datasets.values() for key in keys]
    values = [_values(run) for run in runs]
    rows = []
    for dataset, keys in datasets.items():
        changes = corrected_together([_changes(values[0], own, keys, seed) for own in values[1:]])
        compared = tuple(
            RunFaithfulness(run.label, _scores(own, keys, seed), change)
            for run, own, change in zip(runs, values, [{}, *changes], strict=True)
        )
        rows.append(Faithfulness(dataset, len(keys), compared))
    return tuple(rows)


def corrected_together(changes: Sequence[dict[Name, Difference]]) -> list[dict[Name, Difference]]:
    """The differences of several runs with p-values corrected for all of them."""
    adjusted = iter(holm([change for own in changes for change in own.values()]))
    return [{name: next(adjusted) for name in own} for own in changes]


def _values(run: ScoredRun) -> _Values:
    judged = read_judged(run) or {}
    values: dict[SampleKey, dict[str, float]] = {}
    for key, prediction in run.predictions.items():
        if has_free_answer(prediction):
            shares = dict(zip(WORDS, word_shares(prediction), strict=True))
            own = {name: share for name, share in shares.items() if share is not None}
            if verdict := judged.get(key):
                own |= {"supported": float(verdict.supported), "correct": float(verdict.correct)}
            values[key] = own
    return values


def _scores(own: _Values, keys: Sequence[SampleKey], seed: int) -> dict[str, Interval]:
    of = {name: [own[key][name] for key in keys if name in own[key]] for name in MEASURES}
    return {name: bootstrap_average([values], seed=seed) for name, values in of.items() if values}


def _changes(first: _Values, other: _Values, keys: Sequence[SampleKey], seed: int) -> dict[str, Difference]:
    both = {name: [key for key in keys if name in first[key] and name in other[key]] for name in MEASURES}
    return {
        name: paired_average([[first[k][name] for k in shared]], [[other[k][name] for k in shared]], seed=seed)
        for name, shared in both.items()
        if shared
    }
