"""Counterfactual swaps of training samples: answer and context get another entity of the same kind.

As in Longpre et al. (2021, "Entity-Based Knowledge Conflicts in Question Answering"), the other entity is an answer of
another sample of the dataset, or for single choice another option. The question stays. If the context already has the
other entity, the two change places, so that the context stays consistent; a number or a date must be new to it. A
sample is refused with a reason if a swap would make no sense.

A swapped sample replaces its original. Exchanging `meta["swapped"]["to"]` and `["from"]` restores the original.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from d2e_sft.data.sample import EventSample
from data_builders.swap.kinds import YEAR, Kind, kind_of, plain
from data_builders.text.mentions import (
    exchanged,
    is_part_of_a_name,
    is_replaceable,
    leaves_traces,
    mentions,
    needs_other_article,
    without,
)

_MOST_YEARS_BETWEEN = 10


class Refusal(Enum):
    """The reason why a sample is not swapped."""

    LABEL = "the answer is a label"
    SEVERAL = "several right options"
    ABSENT = "the context lacks the answer"
    NO_ENTITY = "the answer is a clause or not an entity"
    OTHER_CASE = "the context writes it in another letter case"
    IN_QUESTION = "the question names the answer"
    OTHER_ANSWER = "the context has another accepted answer"
    TRACES = "the context names a part or inflection of the answer, or a longer name"
    REPEATED_NUMBER = "the context has the number more than once"
    NO_OTHER = "no other answer of its kind fits"


@dataclass
class Swaps:
    """The numbers of swapped and refused rows of one dataset.

    Attributes:
        refused: Reason → refused rows among those that were tried, in random order, until enough were swapped.
    """

    rows: int
    wanted: int
    swapped: int = 0
    refused: Counter[Refusal] = field(default_factory=Counter)

    def describe(self) -> dict[str, object]:
        """Return the numbers for the manifest."""
        refused = {reason.value: self.refused[reason] for reason in Refusal if self.refused[reason]}
        return {"rows": self.rows, "wanted": self.wanted, "swapped": self.swapped, "refused": refused}


def swap_samples(samples: Sequence[EventSample], share: float, rng: random.Random) -> tuple[list[EventSample], Swaps]:
    """Swap a share of the samples of one dataset, chosen at random among those that can be swapped.

    Args:
        share: Share of all samples, from 0 to 1; `round(share · len(samples))` are swapped, or as many as possible.

    Returns:
        the samples in order, with swapped ones in the place of their originals; and the numbers.
    """
    swaps = Swaps(len(samples), round(share * len(samples)))
    seen = plain(" ".join(dict.fromkeys(sample.context for sample in samples)))
    # An option need not be written anywhere else.
    kinds = [kind_of(sample.answers[0], sample.question, "" if sample.options else seen) for sample in samples]
    pool: dict[Kind, dict[str, None]] = {}
    for sample, kind in zip(samples, kinds, strict=True):
        if kind and sample.format in ("qa", "chat"):
            pool.setdefault(kind, {})[sample.answers[0]] = None
    result = list(samples)
    for place in rng.sample(range(len(samples)), len(samples)):
        if swaps.swapped == swaps.wanted:
            break
        sample, kind = samples[place], kinds[place]
        if kind and sample.options:
            others = [one for one in sample.options if kind_of(one, sample.question, "") == kind]
        else:
            others = list(pool.get(kind, ())) if kind else []
        outcome = _swapped(sample, kind, rng.sample(others, len(others)))
        if isinstance(outcome, Refusal):
            swaps.refused[outcome] += 1
        else:
            result[place] = outcome
            swaps.swapped += 1
    return result, swaps


def with_twins(samples: Sequence[EventSample], share: float, rng: random.Random) -> tuple[list[EventSample], Swaps]:
    """Return the samples of one dataset, with a share of them followed by their swapped form.

    The original of such a pair is `aligned`, the other `conflict`, and the original's answers are the habit of both.
    Samples that already have a subset get no twin.

    Returns:
        the samples in order; and the numbers, which count samples without a subset.
    """
    free = [place for place, sample in enumerate(samples) if sample.subset is None]
    rows, swaps = swap_samples([samples[place] for place in free], share, rng)
    twins = {place: row for place, row in zip(free, rows, strict=True) if row is not samples[place]}
    found = []
    for place, sample in enumerate(samples):
        twin = twins.get(place)
        if twin is None:
            found.append(sample)
            continue
        found.append(sample.model_copy(update={"subset": "aligned", "habit": sample.answers}))
        found.append(twin.model_copy(update={"subset": "conflict", "habit": sample.answers}))
    return found, swaps


def _swapped(sample: EventSample, kind: Kind | None, others: Sequence[str]) -> EventSample | Refusal:
    """The sample with the first other entity of that kind that fits, or the reason for a refusal."""
    if refusal := _refusal(sample, kind):
        return refusal
    assert kind is not None
    answer = sample.answers[0]
    other = next((one for one in others if _fits(sample, one, kind)), None)
    if other is None:
        return Refusal.NO_OTHER
    refined = sample.refined_context
    renamed = {answer: other, other: answer}
    return sample.model_copy(
        update={
            "id": f"{sample.id}-swapped",
            "context": exchanged(sample.context, renamed),
            "refined_context": None if refined is None else exchanged(refined, renamed),
            "answers": [other],
            "subset": "conflict" if sample.habit else sample.subset,
            "meta": {**sample.meta, "swapped": {"from": answer, "to": other}},
        }
    )


def _refusal(sample: EventSample, kind: Kind | None) -> Refusal | None:
    """The reason why a sample cannot be swapped with any entity; None if it may be."""
    answer, texts = sample.answers[0], _texts(sample)
    if sample.format == "nli":
        return Refusal.LABEL
    if sample.options and len(sample.answers) > 1:
        return Refusal.SEVERAL
    found, rest = mentions(answer, sample.context), without(answer, texts)
    if not found or kind is None:
        return Refusal.NO_ENTITY if found else Refusal.ABSENT
    checks = {
        Refusal.OTHER_CASE: not is_replaceable(answer, texts),
        Refusal.IN_QUESTION: _names(_asked(sample), answer),
        Refusal.OTHER_ANSWER: any(mentions(other, rest) for other in sample.answers[1:]),
        Refusal.TRACES: leaves_traces(answer, rest) or is_part_of_a_name(answer, texts),
        Refusal.REPEATED_NUMBER: kind[0] == "number" and len(found) > 1,
    }
    return next((refusal for refusal, holds in checks.items() if holds), None)


def _fits(sample: EventSample, other: str, kind: Kind) -> bool:
    """Whether the other entity may replace the sample's answer; the habit would not be counterfactual."""
    answer, texts = sample.answers[0], _texts(sample)
    if other.casefold() in {text.casefold() for text in (*sample.answers, *sample.habit)}:
        return False
    if _names(_asked(sample), other) or mentions(answer, other) or mentions(other, answer):
        return False
    if kind[0] in ("year", "date", "number"):
        if mentions(other, texts) or not _keeps_order(answer, other, texts):
            return False
    elif is_part_of_a_name(other, texts) or not is_replaceable(other, texts):
        return False
    if leaves_traces(other, without(other, without(answer, texts))):
        return False
    return not needs_other_article(answer, other, texts) and not needs_other_article(other, answer, texts)


def _keeps_order(answer: str, other: str, texts: str) -> bool:
    """Whether the two years are near each other with no year of the text in between, so the order stays."""
    years = [*YEAR.findall(answer)[-1:], *YEAR.findall(other)[-1:]]
    if len(years) < 2:
        return True
    first, last = sorted(years)
    near = int(last) - int(first) <= _MOST_YEARS_BETWEEN
    return near and not any(first < year < last for year in YEAR.findall(texts))


def _names(text: str, entity: str) -> bool:
    return bool(mentions(entity, text)) or leaves_traces(entity, text)


def _asked(sample: EventSample) -> str:
    """The texts around the context: the question, or all turns."""
    turns = sample.conversation.turns if sample.conversation else ()
    return "\n".join([sample.question, *(turn.content for turn in turns)])


def _texts(sample: EventSample) -> str:
    return f"{sample.context}\n{sample.refined_context or ''}"
