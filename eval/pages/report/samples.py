"""Choose the samples that the page shows in full, and remove texts that must not be passed on.

Samples that changed come first. Outcomes take turns (fixed and broken, then both right and both wrong), and so do
groups within an outcome, in the order of the file. The page is therefore reproducible and shows failures as readily
as successes.

Some datasets must not be passed on. The page can leave out their texts and outputs; scores, nli labels and ids stay.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from d2e_sft.util.errors import UserError, did_you_mean
from eval.compare.runs import ScoredRun, presented
from eval.score.predictions import Prediction, SampleKey
from eval.score.scores import GroupKey, group_of

_T = TypeVar("_T")

OUTCOMES = {  # right in one run, right in another
    (False, True): "fixed",
    (True, False): "broken",
    (True, True): "both right",
    (False, False): "both wrong",
}
BETWEEN_RUNS = {
    (False, True): "fixed by {1}",
    (True, False): "broken by {1}",
    (True, True): "right in {0} and {1}",
    (False, False): "wrong in {0} and {1}",
}
ONE_RUN = {(True, True): "right", (False, False): "wrong"}


@dataclass(frozen=True)
class ShownSample:
    """One sample with every run's prediction, and the outcome that it is an example of."""

    outcome: str
    predictions: tuple[Prediction, ...]

    @property
    def sample(self) -> Prediction:
        """The first prediction, for the sample's own fields."""
        return self.predictions[0]


def choose_samples(runs: Sequence[ScoredRun], count: int, *, changed_first: bool = True) -> list[ShownSample]:
    """Choose up to `count` samples, taking outcomes of the first and the presented run in turns.

    `changed_first` chooses others only after all samples that changed between these runs.
    """
    other = runs[presented(runs)]
    told = ONE_RUN if len(runs) == 1 else BETWEEN_RUNS
    outcomes = {change: name.format(runs[0].label, other.label) for change, name in told.items()}
    by_outcome: dict[str, dict[GroupKey, list[SampleKey]]] = {name: {} for name in outcomes.values()}
    for key, first in runs[0].predictions.items():
        groups = by_outcome[outcomes[first.right, other.predictions[key].right]]
        groups.setdefault(group_of(first), []).append(key)
    turns = {name: [(name, key) for key in in_turns(list(groups.values()))] for name, groups in by_outcome.items()}
    changed = [name for (before, after), name in outcomes.items() if changed_first and before != after]
    kinds = (changed, [name for name in turns if name not in changed])
    chosen = [one for names in kinds for one in in_turns([turns[name] for name in names])][:count]
    return [ShownSample(name, tuple(run.predictions[key] for run in runs)) for name, key in chosen]


def in_turns(lists: Sequence[Sequence[_T]]) -> Iterator[_T]:
    """Yield the first item of each list, then the second of each, and so on."""
    for turn in range(max(map(len, lists), default=0)):
        yield from (items[turn] for items in lists if turn < len(items))


def datasets_of(run: ScoredRun) -> list[str]:
    """Names of the datasets that a run was scored on, in order of appearance."""
    return list(dict.fromkeys(dataset for dataset, _ in run.predictions))


def check_datasets(names: Collection[str], run: ScoredRun) -> None:
    """Raise UserError unless these are datasets of the run."""
    known = datasets_of(run)
    for name in names:
        if name not in known:
            raise UserError(
                f"--no-texts-of {name}: not a dataset of the benchmark, which has {', '.join(known)}."
                f"{did_you_mean(name, known)}"
            )


def without_texts(runs: Sequence[ScoredRun], datasets: Collection[str]) -> list[ScoredRun]:
    """The runs without the texts of these datasets."""

    def redacted(prediction: Prediction) -> Prediction:
        if prediction.dataset not in datasets:
            return prediction
        changes: dict[str, Any] = {"context": "", "question": "", "options": [], "output": ""}
        if prediction.format != "nli":  # its gold, habit and answer are labels
            changes |= {"gold": [], "habit": []}
        if prediction.format != "nli" or not prediction.parsed:
            changes["answer"] = []
        return prediction.model_copy(update=changes)

    return [replace(run, predictions={key: redacted(p) for key, p in run.predictions.items()}) for run in runs]


def shown(text: str, limit: int = 1_500) -> str:
    """The text, cut to `limit` characters: small models may repeat themselves endlessly."""
    text = text.strip()
    if len(text) <= limit:
        return text or "(empty output)"
    return f"{text[:limit]} … ({len(text) - limit:,} more characters)"
