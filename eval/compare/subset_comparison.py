"""Runs by subset, side by side: which run uses the context more than the first, and how sure that is.

A run uses it more if it is better on conflict rows, where the habit is wrong, and not worse on aligned ones. Both are
needed, because a method may trade one for the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from d2e_sft.data.built import other_taggers
from d2e_sft.data.sample import ENOUGH_ROWS, Subset
from d2e_sft.util.errors import UserError
from eval.compare.context_use import without_context
from eval.compare.paired import changes_to_first, paired_change
from eval.compare.runs import ScoredRun
from eval.score.predictions import Prediction, SampleKey
from eval.score.statistics import Difference, Interval, bootstrap_average
from eval.score.subsets import (
    AVERAGE,
    DatasetSubsets,
    by_subset,
    gives,
    headline,
    score_subsets,
    with_both,
)

COMPARED: tuple[Subset, ...] = ("conflict", "aligned")  # what a verdict is about
MORE, LESS = "uses the context more", "uses the context less"
MARGIN = 0.03  # aligned accuracy, as a fraction, that a run may lose and still use the context more


@dataclass(frozen=True)
class OwnHabit:
    """Share of the conflict rows that are answered with the habit without their contexts.

    `n` is the number of these rows, `accuracy` the accuracy on them with the context.
    """

    rate: Interval
    n: int
    accuracy: Interval | None


@dataclass(frozen=True)
class RunSubsets:
    """One run on one dataset, or on average.

    Attributes:
        changes: subset → paired difference of its accuracy to the first run's; empty for the first.
        own_habit: None if the model was not asked without the contexts, or no conflict row names a habit.
    """

    label: str
    scores: DatasetSubsets
    changes: dict[Subset, Difference]
    own_habit: OwnHabit | None

    @property
    def verdict(self) -> str:
        """What the changes decide: on conflict rows by the corrected p, on aligned ones by the interval."""
        conflict, aligned = self.changes["conflict"], self.changes.get("aligned")
        changes = [self.changes[name] for name in COMPARED if name in self.changes]
        if all(change.low >= -MARGIN and change.high <= MARGIN for change in changes):
            return "no difference"
        aligned_lower = aligned is not None and aligned.significant and aligned.mean < 0
        if not conflict.significant:
            return "aligned lower, conflict not decided" if aligned_lower else "not decided"
        if conflict.mean < 0:
            return LESS
        if aligned is None or aligned.low >= -MARGIN:
            return MORE
        return "conflict higher, aligned lower" if aligned_lower else "conflict higher, aligned not decided"

    def to_json(self) -> dict[str, Any]:
        """Plain dicts and lists, with scores as fractions."""
        return {
            "run": self.label,
            **self.scores.model_dump(exclude={"dataset"}, exclude_unset=True),
            "changes": {name: asdict(change) for name, change in self.changes.items()},
            "own_habit": None if self.own_habit is None else asdict(self.own_habit),
            "verdict": self.verdict if "conflict" in self.changes else None,
        }


@dataclass(frozen=True)
class DatasetComparison:
    """All runs on one dataset, or on the average of those with aligned and conflict rows."""

    dataset: str
    runs: tuple[RunSubsets, ...]

    @property
    def sizes(self) -> dict[Subset, int]:
        """Subset → number of samples."""
        return self.runs[0].scores.sizes


@dataclass(frozen=True)
class SubsetComparison:
    """Runs on tagged rows: datasets in order of appearance, then their average; and the number of untagged samples.

    `tagged_by` are the models whose habits the subsets are about, if these are a model's; `strangers` are the labels
    of runs of other models.
    """

    datasets: tuple[DatasetComparison, ...]
    untagged: int
    tagged_by: tuple[str, ...] = ()
    strangers: tuple[str, ...] = ()

    @property
    def headline(self) -> DatasetComparison:
        """The dataset that the verdicts are about."""
        return self.datasets[headline([own.sizes for own in self.datasets])]

    def to_json(self) -> dict[str, Any]:
        """Plain dicts and lists, with scores as fractions."""
        datasets = [{"dataset": own.dataset, "runs": [run.to_json() for run in own.runs]} for own in self.datasets]
        tags = {"tagged_by": self.tagged_by, "runs_of_other_models": self.strangers} if self.tagged_by else {}
        return {"untagged": self.untagged, **tags, "datasets": datasets}


@dataclass(frozen=True)
class SmallSubset:
    """A dataset's subset of fewer than 20 rows, with the number of right answers of each run, by label."""

    dataset: str
    subset: Subset
    n: int
    right: dict[str, int]


def small_subsets(runs: Sequence[ScoredRun]) -> tuple[SmallSubset, ...]:
    """Count the right answers in subsets that are too small to compare."""
    tagged = by_subset(list(runs[0].predictions.values()))
    return tuple(
        SmallSubset(
            dataset,
            name,
            len(rows),
            {run.label: sum(run.predictions[p.dataset, p.id].right for p in rows) for run in runs},
        )
        for dataset, own in tagged.items()
        for name, rows in own.items()
        if len(rows) < ENOUGH_ROWS
    )


def compare_subsets(runs: Sequence[ScoredRun], *, seed: int = 0) -> SubsetComparison | None:
    """Compare runs that `load_runs` read together by subset; None if no subset has 20 rows.

    UserError if a sample has different tags in two runs.
    """
    _check_same_tags(runs)
    small = {(one.dataset, one.subset) for one in small_subsets(runs)}
    chosen = [key for key, p in runs[0].predictions.items() if p.subset and (p.dataset, p.subset) not in small]
    tagged = by_subset([runs[0].predictions[key] for key in chosen])
    scores = [score_subsets([run.predictions[key] for key in chosen], seed=seed) for run in runs]
    without = [without_context(run) for run in runs]
    datasets = []
    for place, first in enumerate(scores[0]):
        members = with_both(tagged) if first.dataset == AVERAGE else [first.dataset]
        groups = {name: [tagged[dataset][name] for dataset in members] for name in first.subsets}
        right = [
            {
                name: [{(p.dataset, p.id): float(run.predictions[p.dataset, p.id].right) for p in own} for own in rows]
                for name, rows in groups.items()
            }
            for run in runs
        ]
        changes = changes_to_first(right, partial(paired_change, seed=seed))
        rows = [
            RunSubsets(run.label, own[place], change, _own_habit(run, groups.get("conflict", []), answers, seed))
            for run, own, change, answers in zip(runs, scores, changes, without, strict=True)
        ]
        datasets.append(DatasetComparison(first.dataset, tuple(rows)))
    tagged_by = tuple(dict.fromkeys(name for run in runs for name in run.scores.tagged_by))
    strangers = tuple(run.label for run in runs if other_taggers(tagged_by, run.scores.model))
    untagged = sum(prediction.subset is None for prediction in runs[0].predictions.values())
    return SubsetComparison(tuple(datasets), untagged, tagged_by, strangers) if datasets else None


def _check_same_tags(runs: Sequence[ScoredRun]) -> None:
    for run in runs[1:]:
        for key, first in runs[0].predictions.items():
            if run.predictions[key].subset != first.subset:
                raise UserError(
                    f"{run.folder / 'predictions.jsonl'}: sample {first.id!r} of {first.dataset} has the subset "
                    f"{run.predictions[key].subset}, in {runs[0].folder / 'predictions.jsonl'} {first.subset}",
                    remedy="one of them was scored before rows had subsets; score both again with d2e eval",
                )


def _own_habit(
    run: ScoredRun, conflict: Sequence[Sequence[Prediction]], answers: Mapping[SampleKey, Prediction] | None, seed: int
) -> OwnHabit | None:
    groups = [[(p.dataset, p.id) for p in group if p.habit] for group in conflict]
    if answers is None or not any(groups):
        return None
    asked = [{key: answers.get(key, run.predictions[key]) for key in group} for group in groups if group]
    said = [{key: gives(answer, run.predictions[key].habit) for key, answer in group.items()} for group in asked]
    held = [[float(run.predictions[key].right) for key, habit in group.items() if habit] for group in said]
    held = [group for group in held if group]
    return OwnHabit(
        rate=bootstrap_average([[float(habit) for habit in group.values()] for group in said], seed=seed),
        n=sum(map(len, held)),
        accuracy=bootstrap_average(held, seed=seed) if held else None,
    )
