"""Counterfactual swaps of training samples: answer and context get another entity of the same kind.

As in Longpre et al. (2021, "Entity-Based Knowledge Conflicts in Question Answering"), the question stays. The other
entity is another option of the sample, an answer of another sample, an entry of a word list, or a model's proposal. If
the context already has it, the two change places, so that the context stays consistent; a number or a date must be new
to it. A sample is refused with a reason if a swap would make no sense.

A swapped sample replaces its original. Exchanging `meta["swapped"]["to"]` and `["from"]` restores the context of the
original; `["parts"]` has the parts of the name that changed with it.
"""

import operator
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from d2e_sft.data.built import SWAPPED, TAG
from d2e_sft.data.sample import ENOUGH_ROWS, EventSample, Subset
from d2e_sft.util.answers import answer_key, asked_for, contains, is_same_answer, normalise
from d2e_sft.util.progress import Progress
from data_builders.swap.candidates import Candidates, SwapOptions, propose
from data_builders.swap.entities import without_names
from data_builders.swap.revise import Pool, Refusal, refusal_of, revised


@dataclass
class Swaps:
    """The numbers of swapped and refused rows of one dataset.

    Attributes:
        pools: Pool → swapped rows whose other entity comes from it.
        refused: Reason → refused rows among those that were tried, in random order, until enough were swapped.
        never: Answer → rows that have it and were tried, if none was swapped; without labels of nli.
        habits: Usual answer of the training rows → pairs of a test row and its twin with this habit.
    """

    rows: int
    wanted: int
    pools: Counter[Pool] = field(default_factory=Counter)
    refused: Counter[Refusal] = field(default_factory=Counter)
    never: Counter[str] = field(default_factory=Counter)
    habits: Counter[str] = field(default_factory=Counter)

    @property
    def swapped(self) -> int:
        return self.pools.total()

    def describe(self) -> dict[str, object]:
        pools = {pool.value: self.pools[pool] for pool in Pool if self.pools[pool]}
        refused = {reason.value: self.refused[reason] for reason in Refusal if self.refused[reason]}
        habits = {"habits": dict(self.habits.most_common())} if self.habits else {}
        counts = {"rows": self.rows, "wanted": self.wanted, "swapped": self.swapped}
        return {**counts, "pools": pools, "refused": refused, **habits}


def swap_samples(
    samples: Sequence[EventSample],
    share: float,
    rng: random.Random,
    options: SwapOptions | None = None,
    more: Sequence[EventSample] | None = None,
) -> tuple[list[EventSample], Swaps]:
    """Swap a share of the samples of one dataset, chosen at random among those that can be swapped.

    `round(share · len(samples))` are swapped in their places, or as many as possible. `more` is as for `Candidates`.
    """
    options = options or SwapOptions()
    swaps, result = Swaps(len(samples), round(share * len(samples))), list(samples)
    candidates = Candidates(samples, options, rng, more)
    left, tried = [], list[int]()
    for place in Progress(rng.sample(range(len(samples)), len(samples)), desc="swaps", unit="row"):
        if swaps.swapped == swaps.wanted:
            break
        sample = samples[place]
        tried.append(place)
        refusal = refusal_of(sample)
        outcome = refusal or _first_that_fits(sample, candidates.of(place))
        if isinstance(outcome, EventSample):
            result[place] = outcome
            swaps.pools[Pool(outcome.meta[SWAPPED]["pool"])] += 1
            continue
        if outcome is Refusal.NO_OTHER and candidates.kinds[place] is None:
            outcome = Refusal.NO_ENTITY
        swaps.refused[outcome] += 1
        if refusal is None and not candidates.choices(place):
            left.append((place, outcome))
    if Pool.MODEL in options.order:
        _swap_by_model(result, candidates, left, swaps, options)
    swapped = {samples[place].answers[0] for place in tried if result[place] is not samples[place]}
    free = (samples[place].answers[0] for place in tried if samples[place].format != "nli")
    swaps.never = Counter(answer for answer in free if answer not in swapped)
    return result, swaps


def with_twins(
    samples: Sequence[EventSample],
    share: float,
    rng: random.Random,
    options: SwapOptions | None = None,
    more: Sequence[EventSample] | None = None,
    *,
    train: Iterable[EventSample] = (),
) -> tuple[list[EventSample], Swaps]:
    """Return the samples of one dataset, with a share of them followed by their swapped form.

    Both of such a pair have one habit: the sample's own, else the usual answer of the training rows (`Habits.of`),
    else the sample's answer. Their subsets follow from it, and it is never the twin's answer. A sample that a model
    has tagged stays as it is. Its twin has the model's habit, and is in `conflict` with it, unless the sample is
    `unknown`. Samples with another subset get no twin, and `Swaps` does not count them.
    """
    habits, result = Habits(train), list[EventSample]()
    free = {
        place: sample.model_copy(update={} if TAG in sample.meta else {"habit": sample.habit or habits.of(sample)})
        for place, sample in enumerate(samples)
        if sample.subset is None or TAG in sample.meta
    }
    rows, swaps = swap_samples(list(free.values()), share, rng, options, more)
    twins = {place: row for place, row in zip(free, rows, strict=True) if row is not free[place]}
    for place, sample in enumerate(samples):
        pair = [sample, twins[place]] if place in twins else [sample]
        if place in twins and sample.subset is None:
            habit = twins[place].habit or sample.answers
            swaps.habits.update(() if sample.habit else twins[place].habit[:1])
            if _subset_by(habit, sample) == "aligned":
                habit = sample.answers
            pair = [row.model_copy(update={"subset": _subset_by(habit, row), "habit": habit}) for row in pair]
        result += pair
    return result, swaps


def _swap_by_model(
    rows: list[EventSample],
    candidates: Candidates,
    left: Sequence[tuple[int, Refusal]],
    swaps: Swaps,
    options: SwapOptions,
) -> None:
    """Swap rows with a model's proposals until enough are swapped; `left` has those that it may try, and why."""
    start = 0
    while start < len(left) and (missing := swaps.wanted - swaps.swapped):
        batch, start = left[start : start + 2 * missing], start + 2 * missing
        places = [place for place, _ in batch]
        proposals = propose([rows[place] for place in places], [candidates.answer(place) for place in places], options)
        for (place, refusal), texts in zip(batch, proposals, strict=True):
            if swaps.swapped == swaps.wanted:
                break
            outcome = _first_that_fits(rows[place], candidates.proposed(place, texts))
            if isinstance(outcome, EventSample):
                rows[place] = outcome
                swaps.pools[Pool.MODEL] += 1
                swaps.refused[refusal] -= 1


def _first_that_fits(sample: EventSample, candidates: Iterable[tuple[Pool, str]]) -> EventSample | Refusal:
    """The sample with the first candidate that fits; else the reason that was nearest to a fit."""
    refusals = set()
    for pool, candidate in candidates:
        outcome = revised(sample, candidate, pool)
        if isinstance(outcome, EventSample):
            return outcome
        refusals.add(outcome)
    return next((reason for reason in (Refusal.TRACES, Refusal.OTHER_ANSWER) if reason in refusals), Refusal.NO_OTHER)


class Habits:
    """The usual answers to the questions of a dataset's training rows; a swapped row counts with its first answer."""

    def __init__(self, rows: Iterable[EventSample]) -> None:
        """Count the answers of rows with one answer each; labels of nli and sets of options are left out."""
        self._counts: defaultdict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
        self._forms: dict[str, list[str]] = {}
        for row in rows:
            if row.format not in ("nli", "mcq"):
                answers = [row.meta[SWAPPED]["from"]] if row.meta.get(SWAPPED) else row.answers
                key = answer_key(answers[0])
                self._forms.setdefault(key, answers)
                for question in _questions(row):
                    self._counts[question][key] += 1

    def of(self, row: EventSample) -> list[str]:
        """Return the usual answer to a row's question, in its accepted forms; empty if there is no firm one.

        It is the answer of more than half of the training rows with the same question. If these are fewer than 20,
        rows count whose question differs only in names and numbers; if these are too few, rows that ask for the same.
        It does not count if a smaller group has another answer more often, or if it is no option of the row.
        """
        smaller = list[Counter[str]]()
        for counts in (self._counts.get(question, Counter[str]()) for question in _questions(row)):
            if counts.total() < ENOUGH_ROWS:
                smaller.append(counts)
                continue
            [(key, count)] = counts.most_common(1)
            if 2 * count <= counts.total() or any(few[key] < max(few.values(), default=0) for few in smaller):
                break
            return [form for form in self._forms[key] if not row.options or form in row.options]
        return []


def _questions(row: EventSample) -> list[tuple[str, ...]]:
    """The row's question as it is, without names and numbers, and what it asks for."""
    kind = (row.format, asked_for(row.question))
    return [(row.format, "", normalise(row.question)), (*kind, without_names(row.question)), kind]


def _subset_by(habit: Sequence[str], row: EventSample) -> Subset:
    """The subset of a row by a habit; `unknown` for free text if one of habit and answer is in the other."""
    is_same = operator.eq if {*habit} <= {*row.candidates} else is_same_answer
    if any(is_same(form, answer) for form in habit for answer in row.answers):
        return "aligned"
    pairs = [] if row.candidates else [(form, answer) for form in habit for answer in row.answers]
    return "unknown" if any(contains(form, answer) or contains(answer, form) for form, answer in pairs) else "conflict"
