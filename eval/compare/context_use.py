"""What the context is worth to a model: its answers beside those that it gives without the context.

A model that has learnt to neglect the context (PIPER, section 2.2) answers the same without it and scores the same. On
a dataset where every model does so, nothing that makes a model read can show.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from eval.score.normalise import same_answers
from eval.score.predictions import Prediction, SampleKey
from eval.score.statistics import Difference, Interval, bootstrap_average, paired_average


@dataclass(frozen=True)
class ContextUse:
    """One run in one row, as fractions.

    Attributes:
        without: the mean of EM and F1 of the answers without the context, which are decoded plainly.
        gain: what the context adds: the run's answers as they were decoded minus those without, paired. Of a run
            that was decoded debiased it holds what debiasing does, too.
        same: how often an answer was recognised with and without, and was the same.
    """

    without: Interval
    gain: Difference
    same: float


def context_use(
    groups: Sequence[Sequence[Prediction]], without: Mapping[SampleKey, Prediction], *, seed: int = 0
) -> ContextUse:
    """What the context adds to one list of predictions, or on average to several.

    A sample that has no context counts as answered the same, if an answer was recognised.
    """
    pairs = [[(p, without.get((p.dataset, p.id), p)) for p in group] for group in groups]
    before = [[other.mean for _, other in group] for group in pairs]
    after = [[one.mean for one, _ in group] for group in pairs]
    same = [sum(_same(*pair) for pair in group) / len(group) for group in pairs]
    return ContextUse(
        bootstrap_average(before, seed=seed), paired_average(before, after, seed=seed), sum(same) / len(same)
    )


def _same(one: Prediction, other: Prediction) -> bool:
    return one.parsed and other.parsed and same_answers(one.answer, other.answer)
