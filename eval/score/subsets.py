"""Does a model use the context? Accuracy by subset, the habit gap, and how often an answer is the habit.

A row may be tagged with how its context relates to the habit, the usual answer without it (`EventSample.subset`). A
model that uses the context scores the same on conflict rows, where the two differ, as on aligned ones, where they
agree. A model that answers from habit is right only on aligned rows.

Definitions and sources: docs/reference/scores.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import BaseModel

from d2e_sft.data.prompts import NOT_OF_EVENTS
from d2e_sft.data.sample import ENOUGH_ROWS, SUBSETS, Subset
from d2e_sft.util.answers import asked_for
from eval.score.metrics import exact_match, normalise, option_key, same_answers
from eval.score.predictions import Prediction
from eval.score.statistics import Interval, bootstrap_average, bootstrap_gap, bootstrap_ratio

AVERAGE = "average"  # the dataset's place in what averages datasets


class AnswerCells(BaseModel):
    """Shares of outputs that contain only an accepted answer, only the habit, both or neither; they sum to 1."""

    context_only: float
    habit_only: float
    both: float
    neither: float


class SubsetScores(BaseModel):
    """One subset of a dataset; fractions with 95 % intervals.

    Attributes:
        accuracy: Share of correct answers by exact match (of the sets for mcq). On conflict rows this measures
            adoption of the context, on aligned rows agreement.
        mean: Mean of exact match and F1 of each sample.
        with_habit: Number of rows that name the habit. The fields below are about these rows; aligned rows lack them,
            because there the habit is the accepted answer.
        habit_rate: Share of answers that are the habit.
        contains: Conflict rows only: what outputs contain.
        memorisation_ratio: Conflict rows only: P_o / (P_s + P_o) of Zhou et al. (2023). P_o and P_s are the shares of
            outputs that contain the habit and an accepted answer. None if no output contains either.
    """

    n: int
    accuracy: Interval
    mean: Interval
    with_habit: int = 0
    habit_rate: Interval | None = None
    contains: AnswerCells | None = None
    memorisation_ratio: Interval | None = None


class DatasetSubsets(BaseModel):
    """A dataset's subsets, or the plain average of several datasets; see `with_both`.

    Attributes:
        gap: the habit gap, accuracy on aligned rows − accuracy on conflict rows, if there are both.
        balanced: mean of the two accuracies.
    """

    dataset: str
    subsets: dict[Subset, SubsetScores]
    gap: Interval | None = None
    balanced: Interval | None = None

    @property
    def sizes(self) -> dict[Subset, int]:
        """Return subset → number of rows."""
        return {name: scores.n for name, scores in self.subsets.items()}


_LEAST_OF_KIND, _MOST_KINDS = 10, 12
_COMPARED: tuple[Subset, ...] = ("aligned", "conflict")
Tagged = dict[str, dict[Subset, list[Prediction]]]  # dataset → subset → its predictions


def by_subset(predictions: Sequence[Prediction]) -> Tagged:
    """Group tagged predictions by dataset, in order of appearance, and subset, in the order of `SUBSETS`."""
    tagged: Tagged = {}
    for prediction in predictions:
        if prediction.subset is not None:
            tagged.setdefault(prediction.dataset, {}).setdefault(prediction.subset, []).append(prediction)
    return {dataset: {name: own[name] for name in SUBSETS if name in own} for dataset, own in tagged.items()}


def with_both(tagged: Tagged) -> list[str]:
    """Return the datasets that an average is over: those with 20 aligned and 20 conflict rows or more.

    If no dataset has so many, it is over all that have both.
    """
    fewest = {dataset: min(len(own.get(name, [])) for name in _COMPARED) for dataset, own in tagged.items()}
    found = [dataset for dataset, n in fewest.items() if n >= ENOUGH_ROWS]
    return found or [dataset for dataset, n in fewest.items() if n]


def by_kind(predictions: Sequence[Prediction]) -> dict[str, list[Prediction]]:
    """Group free answers by what their questions ask for, the largest kinds first; the rest is `other questions`.

    The rest are kinds of fewer than 10 rows and those after the twelfth. Returns nothing unless two kinds have 10
    rows. Rows about event relations are left out.
    """
    found: dict[str, list[Prediction]] = {}
    for one in predictions:
        if one.format in ("qa", "chat") and one.relation in NOT_OF_EVENTS:
            found.setdefault(asked_for(one.question), []).append(one)
    ordered = sorted(found, key=lambda kind: -len(found[kind]))
    shown = [kind for kind in ordered if len(found[kind]) >= _LEAST_OF_KIND][:_MOST_KINDS]
    if len(shown) < 2:
        return {}
    rest = [one for kind in ordered if kind not in shown for one in found[kind]]
    return {kind: found[kind] for kind in shown} | ({"other questions": rest} if rest else {})


def score_subsets(predictions: Sequence[Prediction], *, seed: int = 0) -> list[DatasetSubsets]:
    """Score the subsets of each dataset and, last, the average if it is over several datasets; see `with_both`.

    Rows without a tag are left out.
    """
    tagged = by_subset(predictions)
    scored = [_scored(dataset, [own], seed) for dataset, own in tagged.items()]
    both = with_both(tagged)
    if len(both) > 1:
        pairs = [{name: tagged[dataset][name] for name in _COMPARED} for dataset in both]
        scored.append(_scored(AVERAGE, pairs, seed))
    return scored


def headline(parts: Sequence[Mapping[Subset, int]]) -> int:
    """Return which of several parts, given by the sizes of their subsets, is reported first.

    This is the last part with aligned and conflict rows (the average, if there is one), else the last one with
    conflict rows, else the last one. Subsets of 20 rows or more come first.
    """
    for least in (ENOUGH_ROWS, 1):
        for wanted in (_COMPARED, _COMPARED[1:]):
            fitting = [place for place, own in enumerate(parts) if all(own.get(name, 0) >= least for name in wanted)]
            if fitting:
                return fitting[-1]
    return len(parts) - 1


def gives(prediction: Prediction, answers: Sequence[str]) -> bool:
    """Return whether the extracted answer is one of `answers`, compared like the format's exact match.

    This compares the label in nli, the set of options in mcq, an option in scq, normalised text in qa, and in chat
    normalised text that the output contains.
    """
    if not answers or not prediction.answer:
        return False
    if prediction.format == "mcq":
        return same_answers(prediction.answer, answers)
    said = " ".join(prediction.answer)
    if prediction.format == "nli":
        return prediction.parsed and said in answers
    if prediction.format == "chat":
        return contains(prediction, answers)
    if prediction.format == "scq":
        return option_key(said) in map(option_key, answers)
    return exact_match(said, answers) == 1


def contains(prediction: Prediction, answers: Sequence[str]) -> bool:
    """Return whether the output contains one of `answers`, both normalised, as characters (Zhou et al. 2023).

    An option that is named by its letter counts. Labels of nli and sets of options are compared as in `gives`, because
    an output often mentions a label or an option without choosing it.
    """
    if prediction.format in ("nli", "mcq"):
        return gives(prediction, answers)
    text = normalise("\n".join([prediction.output, *prediction.answer]))
    return any(key in text for answer in answers if (key := normalise(answer)))


def _scored(dataset: str, groups: Sequence[dict[Subset, list[Prediction]]], seed: int) -> DatasetSubsets:
    """Score one dataset's subsets, or the average of several datasets with the same ones."""
    names = list(groups[0])
    right = {name: [[float(p.right) for p in own[name]] for own in groups] for name in names}
    scores = DatasetSubsets(
        dataset=dataset, subsets={name: _subset(name, [own[name] for own in groups], seed) for name in names}
    )
    if "aligned" in right and "conflict" in right:
        scores.gap = bootstrap_gap(right["aligned"], right["conflict"], seed=seed)
        scores.balanced = bootstrap_average([*right["aligned"], *right["conflict"]], seed=seed)
    return scores


def _subset(name: Subset, groups: Sequence[Sequence[Prediction]], seed: int) -> SubsetScores:
    scores = SubsetScores(
        n=sum(len(group) for group in groups),
        accuracy=bootstrap_average([[float(p.right) for p in group] for group in groups], seed=seed),
        mean=bootstrap_average([[p.mean for p in group] for group in groups], seed=seed),
    )
    habitual = [said for group in groups if (said := [p for p in group if p.habit])]
    if habitual and name != "aligned":
        scores.with_habit = sum(len(group) for group in habitual)
        scores.habit_rate = bootstrap_average([[float(gives(p, p.habit)) for p in g] for g in habitual], seed=seed)
    if habitual and name == "conflict":
        context = [[contains(p, p.gold) for p in group] for group in habitual]
        habit = [[contains(p, p.habit) for p in group] for group in habitual]
        scores.contains = _cells(context, habit)
        scores.memorisation_ratio = bootstrap_ratio(habit, context, seed=seed)
    return scores


def _cells(context: Sequence[Sequence[bool]], habit: Sequence[Sequence[bool]]) -> AnswerCells:
    """Return the four shares, averaged over groups."""
    pairs = [list(zip(*group, strict=True)) for group in zip(context, habit, strict=True)]

    def share(cell: tuple[bool, bool]) -> float:
        return sum(group.count(cell) / len(group) for group in pairs) / len(pairs)

    return AnswerCells(
        context_only=share((True, False)),
        habit_only=share((False, True)),
        both=share((True, True)),
        neither=share((False, False)),
    )
