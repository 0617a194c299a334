"""Candidates for the other answer of each sample of a dataset, from the pools that are asked, in their order."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import cached_property

from d2e_sft.data.sample import EventSample
from d2e_sft.util.answers import asked_for
from data_builders.swap.entities import others_of_type, type_of
from data_builders.swap.forms import Seen, same_form
from data_builders.swap.kinds import Kind, is_clause, kind_of, shape_of, wider
from data_builders.swap.numbers import other_numbers
from data_builders.swap.options import CHOICES, Pool, SwapOptions
from data_builders.swap.revise import is_modifier, texts_of
from data_builders.text.mentions import spelling

_MOST_WORDS_WITH_NUMBER = 5  # in longer answers, a number is a detail


class Candidates:
    """The other answers that a dataset offers for each of its samples.

    Attributes:
        kinds: The kind of each sample's answer, in their order.
    """

    def __init__(
        self,
        samples: Sequence[EventSample],
        options: SwapOptions,
        rng: random.Random,
        more: Sequence[EventSample] | None = None,
    ) -> None:
        """Read the answers of the samples.

        Args:
            more: further rows of the dataset. If given, where no answer of a kind fits, those of both of a wider kind
                (`wider`) are tried.
        """
        self._samples, self._order, self._rng, self._more = samples, options.order, rng, more
        self.seen = Seen.of(sample.context for sample in samples)
        self._answers = [spelling(sample.answers[0], texts_of(sample)) or sample.answers[0] for sample in samples]
        # An option need not be written anywhere else.
        self.kinds: list[Kind | None] = [
            kind_of(answer, sample.question, "" if sample.options else self.seen.plain)
            for sample, answer in zip(samples, self._answers, strict=True)
        ]
        self._types = [
            type_of(answer, asked_for(sample.question), sample.context)
            for sample, answer in zip(samples, self._answers, strict=True)
        ]
        self._pool: dict[tuple[Kind, str], dict[str, None]] = {}
        for place, (sample, answer) in enumerate(zip(samples, self._answers, strict=True)):
            if (kind := self.kinds[place]) and _can_be_lent(sample, answer):
                self._pool.setdefault((kind, self._types[place]), {})[answer] = None

    def answer(self, place: int) -> str:
        """Return a sample's answer as its contexts write it."""
        return self._answers[place]

    def choices(self, place: int) -> list[str]:
        """Return a sample's own options or choices if they are a pool: it then takes no answer from the others."""
        sample = self._samples[place]
        return sample.options or (sample.meta.get(CHOICES, []) if Pool.OPTIONS in self._order else [])

    def of(self, place: int) -> Iterator[tuple[Pool, str]]:
        """Yield the other answers for the sample at a place, as its context would write them."""
        answer = self.answer(place)
        for pool in self._order:
            for other in self._from(pool, place, answer):
                yield pool, other
            if pool is Pool.DATASET and self._more is not None and not self.choices(place):
                kind = self.kinds[place]
                others = list(self._wider_pool.get((wider(kind), self._types[place]), ())) if kind else []
                for other in self._rng.sample(others, len(others)):
                    yield pool, other

    def proposed(self, place: int, proposals: Sequence[str]) -> Iterator[tuple[Pool, str]]:
        """Yield the model's proposals for a sample that have the form of its answer."""
        answer = self.answer(place)
        for text in proposals:
            if same_form(answer, other := self.seen.fitted(text, answer)):
                yield Pool.MODEL, other

    @cached_property
    def _wider_pool(self) -> dict[tuple[Kind, str], dict[str, None]]:
        """(Wider kind, type) → the answers of all rows."""
        found: dict[tuple[Kind, str], dict[str, None]] = {}
        for (known, name), answers in self._pool.items():
            found.setdefault((wider(known), name), {}).update(answers)
        seen = Seen.of(sample.context for sample in self._more or ()).plain
        for sample in self._more or ():
            answer = spelling(sample.answers[0], texts_of(sample)) or sample.answers[0]
            if _can_be_lent(sample, answer) and (kind := kind_of(answer, sample.question, seen)):
                name = type_of(answer, asked_for(sample.question), sample.context)
                found.setdefault((wider(kind), name), {})[answer] = None
        return found

    def _from(self, pool: Pool, place: int, answer: str) -> list[str]:
        sample, kind = self._samples[place], self.kinds[place]
        given = self.choices(place)
        if pool is Pool.OPTIONS:
            fitted = [self.seen.fitted(one, answer) for one in self._rng.sample(given, len(given))]
            alike = [kind is not None and kind_of(one, sample.question, "") == kind for one in fitted]
            found = sorted(zip(alike, fitted, strict=True), key=lambda pair: not pair[0])  # the same kind comes first
            return [one for is_alike, one in found if same_form(answer, one)]
        if given:
            return []
        if pool is Pool.DATASET:
            others = list(self._pool.get((kind, self._types[place]), ())) if kind else []
            return self._rng.sample(others, len(others))
        if pool is Pool.LISTS:
            is_short = len(answer.split()) <= _MOST_WORDS_WITH_NUMBER and not is_clause(answer)
            if is_short and (numbers := other_numbers(answer, self._rng)):
                return numbers
            return others_of_type(answer, asked_for(sample.question), sample.context, self._rng)
        return []


def _can_be_lent(sample: EventSample, answer: str) -> bool:
    """Whether a row's answer is free text, and no word before a noun."""
    return sample.format in ("qa", "chat") and not (shape_of(answer) == "name" and is_modifier(answer, sample.context))
