"""Samples to read in full, chosen so that every kind of outcome is seen and never by how good they look.

Kinds take turns (mended, broken, both right, both wrong), and within a kind the groups do, each by the order of
its file. The page is therefore the same every time, and shows failures as readily as successes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from eval.compare.runs import ScoredRun
from eval.score.predictions import Prediction, SampleKey
from eval.score.scores import GroupKey, group_of

_T = TypeVar("_T")

Outcome = Literal["mended", "broken", "both right", "both wrong"]
OUTCOMES: dict[tuple[bool, bool], Outcome] = {  # right in one run, right in another
    (False, True): "mended",
    (True, False): "broken",
    (True, True): "both right",
    (False, False): "both wrong",
}
BETWEEN_RUNS = {
    (False, True): "mended by the last run",
    (True, False): "broken by the last run",
    (True, True): "right in the first and the last run",
    (False, False): "wrong in the first and the last run",
}
ONE_RUN = {(True, True): "right", (False, False): "wrong"}


@dataclass(frozen=True)
class ShownSample:
    """One sample with every run's prediction, in the order of the runs, and what it is an example of."""

    outcome: str
    predictions: tuple[Prediction, ...]

    @property
    def sample(self) -> Prediction:
        """Any of the predictions, for the fields that belong to the sample."""
        return self.predictions[0]


def is_right(prediction: Prediction) -> bool:
    """Whether an answer counts as right on the page: an exact match, of several options the right set."""
    return prediction.right


def choose_samples(runs: Sequence[ScoredRun], count: int) -> list[ShownSample]:
    """Up to `count` samples, in turns over the outcomes in the first and the last run."""
    outcomes = ONE_RUN if len(runs) == 1 else BETWEEN_RUNS
    by_outcome: dict[str, dict[GroupKey, list[SampleKey]]] = {name: {} for name in outcomes.values()}
    for key, first in runs[0].predictions.items():
        last = runs[-1].predictions[key]
        groups = by_outcome[outcomes[is_right(first), is_right(last)]]
        groups.setdefault(group_of(first), []).append(key)
    turns = [[(name, key) for key in in_turns(list(groups.values()))] for name, groups in by_outcome.items()]
    return [
        ShownSample(name, tuple(run.predictions[key] for run in runs)) for name, key in list(in_turns(turns))[:count]
    ]


def in_turns(lists: Sequence[Sequence[_T]]) -> Iterator[_T]:
    """The first of each list, then the second of each, and so on."""
    for turn in range(max(map(len, lists), default=0)):
        yield from (items[turn] for items in lists if turn < len(items))
