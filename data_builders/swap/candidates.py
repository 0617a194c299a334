"""The other answers that may replace a sample's: from its options, word lists, other rows, or a model."""

import random
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from d2e_sft.data.sample import EventSample
from d2e_sft.util.answers import asked_for
from data_builders.swap import entities
from data_builders.swap.entities import Kind, shape_of
from data_builders.swap.revise import Pool, entity_of, head, is_modifier, texts_of
from data_builders.text import mentions
from data_builders.text.sentences import split_sentences
from data_builders.text.words import STOP_WORDS, words_of

CHOICES = "choices"  # of `meta`: wrong answers that are not asked as options
_MOST_WORDS_WITH_NUMBER = 5  # in longer answers, a number is a detail
_WORDS_MORE = 3  # than the shorter answer, or twice as many
_PLURAL = re.compile(r"[^suio]s$")
_LOWER = re.compile(r"(?<!\w)[a-z][\w’'-]+")
_INSIDE_SENTENCE = re.compile(r"(?<=[a-z,;] )[A-Z][\w’'-]+")
_LIST_MARK = re.compile(r"^\s*(?:[-*•]|\(?\d{1,2}[.)])\s+")
_QUOTES = "\"'“”‘’`*"
_REPLY_TOKENS = 60


class SwapOptions(BaseModel):
    """Options of swaps; on the command line `swap.NAME=VALUE`.

    Attributes:
        pools: Where other answers come from, in this order: `options` (the row's own options or choices), `lists`
            (numbers, dates and word lists by type), `dataset` (answers of other rows) and, always last, `model`. None:
            all of them, `model` if one is named.
        model: Proposes answers: a folder, a Hub name or `builtin:…`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    pools: Annotated[
        tuple[Pool, ...] | None,
        BeforeValidator(lambda value: list(map(str.strip, value.split(","))) if isinstance(value, str) else value),
        Field(min_length=1),
    ] = None
    model: str | None = None
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"

    def describe(self) -> dict[str, Any]:
        """Return the options for the manifest, each in the form of a setting."""
        return {**self.model_dump(), "pools": ",".join(self.pools) if self.pools else None}

    @property
    def order(self) -> tuple[Pool, ...]:
        """The pools in the order in which they are asked."""
        chosen = tuple(Pool) if self.pools is None else self.pools
        return tuple(pool for pool in dict.fromkeys(chosen) if pool is not Pool.MODEL or self.model)

    @model_validator(mode="after")
    def _agree(self) -> Self:
        pools = self.pools or ()
        if Pool.MODEL in pools and self.model is None:
            raise ValueError("swap.pools has model without one; name it, for example --swap-model OWNER/NAME")
        if self.pools and self.model and Pool.MODEL not in pools:
            raise ValueError(f"swap.model with the pools {', '.join(pools)}; expected model among them")
        if self.model is None and "dtype" in self.model_fields_set:
            raise ValueError("swap.dtype without --swap-model")
        return self


class Writing:
    """How a dataset's contexts write words."""

    def __init__(self, contexts: Iterable[str]) -> None:
        self._contexts = tuple(dict.fromkeys(contexts))

    @cached_property
    def plain(self) -> str:
        """The contexts as `kind_of` needs them."""
        return entities.plain(" ".join(self._contexts))

    @cached_property
    def _lower(self) -> frozenset[str]:
        return frozenset(word for text in self._contexts for word in _LOWER.findall(text))

    @cached_property
    def _names(self) -> frozenset[str]:
        """Words that have a capital inside sentences and are nowhere in lower case."""
        capitalised = {word for text in self._contexts for word in _INSIDE_SENTENCE.findall(text)}
        return frozenset(word for word in capitalised if word.casefold() not in self._lower)

    def fitted(self, text: str, answer: str) -> str:
        """Return the other answer with the answer's capital and full stop; names and abbreviations keep theirs."""
        if text.endswith(".") and not answer.endswith(".") and not text.rpartition(" ")[2][:1].isupper():
            text = text.rstrip(".")
        first, *rest = text.split()
        if not (answer[0].islower() and text[0].isupper()):
            return text
        word, known = first.casefold(), first in self._names or first in entities.NAMES
        is_common = word in STOP_WORDS or (word in self._lower and not known)
        named = any(part[0].isupper() and part.casefold() not in STOP_WORDS for part in rest)
        is_name = known or first != first.capitalize() or named
        return text[0].lower() + text[1:] if is_common or not is_name else text


def same_form(answer: str, other: str) -> bool:
    """Return whether both are a name, number, date or phrase, begin alike, and have about as many words.

    Phrases must also agree in number, since a verb may follow.
    """
    shape = shape_of(answer)
    if shape != shape_of(other) or entities.is_clause(answer) != entities.is_clause(other):
        return False
    if shape in ("year", "date", "number"):
        return len({re.sub(r"[\d.,]+", "9", text.casefold()).partition(" ")[2] for text in (answer, other)}) == 1
    fewest, most = sorted(len(text.split()) for text in (answer, other))
    if most > max(fewest + _WORDS_MORE, 2 * fewest) or _opening(answer) != _opening(other):
        return False
    return shape == "name" or bool(_PLURAL.search(head(answer))) == bool(_PLURAL.search(head(other)))


def _opening(phrase: str) -> str:
    parts = phrase.split()
    first = parts[0].casefold()
    groups = {
        "determiner": words_of("determiners"),
        "to": {"to"},
        "clause": words_of("subordinators", "nominatives") - words_of("noun_cues") | {"i", "here", "there"},
        "preposition": words_of("noun_cues", "prepositions"),
    }
    if kind := next((kind for kind, group in groups.items() if first in group), None):
        return kind
    if parts[0][0].isupper() or first in words_of("not_gerunds"):
        return ""
    return "gerund" if first.endswith("ing") else "past" if first.endswith("ed") and len(parts) > 1 else ""


class Candidates:
    """The other answers that a dataset offers for each of its samples, whose answers are of `kinds`."""

    def __init__(
        self,
        samples: Sequence[EventSample],
        options: SwapOptions,
        rng: random.Random,
        more: Sequence[EventSample] | None = None,
    ) -> None:
        """Read the answers of the samples.

        If `more` rows of the dataset are given, answers of a `wider` kind are tried where none of the same kind fits.
        """
        self._samples, self._order, self._rng, self._more = samples, options.order, rng, more
        self._writing = Writing(sample.context for sample in samples)
        self._answers = list(map(_written, samples))
        # An option need not be written anywhere else.
        seen = ["" if sample.options else self._writing.plain for sample in samples]
        self.kinds: list[Kind | None] = [
            entities.kind_of(answer, sample.question, text)
            for sample, answer, text in zip(samples, self._answers, seen, strict=True)
        ]
        self._types = list(map(_type, samples, self._answers))
        self._lent: dict[tuple[Kind, str], dict[str, None]] = {}  # (kind, type) → answers
        for sample, answer, kind, name in zip(samples, self._answers, self.kinds, self._types, strict=True):
            if kind and _can_be_lent(sample, answer):
                self._lent.setdefault((kind, name), {})[answer] = None

    def answer(self, place: int) -> str:
        """Return a sample's answer as its contexts write it."""
        return self._answers[place]

    def choices(self, place: int) -> list[str]:
        """Return a sample's own options or choices if they are a pool: it then takes no answer from the others."""
        sample = self._samples[place]
        return sample.options or (sample.meta.get(CHOICES, []) if Pool.OPTIONS in self._order else [])

    def of(self, place: int) -> Iterator[tuple[Pool, str]]:
        """Yield the other answers for the sample at a place, as its context would write them."""
        readers = {Pool.OPTIONS: self._from_options, Pool.LISTS: self._from_lists, Pool.DATASET: self._from_dataset}
        for pool in self._order:
            if pool in readers and bool(self.choices(place)) == (pool is Pool.OPTIONS):
                for candidate in readers[pool](place):
                    yield pool, candidate

    def proposed(self, place: int, proposals: Sequence[str]) -> Iterator[tuple[Pool, str]]:
        """Yield the model's proposals for a sample that have the form of its answer."""
        answer = self._answers[place]
        for text in proposals:
            if same_form(answer, candidate := self._writing.fitted(text, answer)):
                yield Pool.MODEL, candidate

    def _from_options(self, place: int) -> list[str]:
        answer, kind, question = self._answers[place], self.kinds[place], self._samples[place].question
        fitted = [self._writing.fitted(candidate, answer) for candidate in self._drawn(self.choices(place))]
        # Those of the same kind come first.
        fitted.sort(key=lambda candidate: kind is None or entities.kind_of(candidate, question, "") != kind)
        return [candidate for candidate in fitted if same_form(answer, candidate)]

    def _from_lists(self, place: int) -> list[str]:
        answer, sample = self._answers[place], self._samples[place]
        is_short = len(answer.split()) <= _MOST_WORDS_WITH_NUMBER and not entities.is_clause(answer)
        if is_short and (numbers := entities.other_numbers(answer, self._rng, asked_for(sample.question))):
            return numbers
        return entities.others_of_type(answer, asked_for(sample.question), sample.context, self._rng)

    def _from_dataset(self, place: int) -> Iterator[str]:
        kind, name = self.kinds[place], self._types[place]
        yield from self._drawn(self._lent.get((kind, name), ()) if kind else ())
        if self._more is not None:
            yield from self._drawn(self._lent_widely.get((entities.wider(kind), name), ()) if kind else ())

    def _drawn(self, texts: Iterable[str]) -> list[str]:
        return self._rng.sample(candidates := list(texts), len(candidates))

    @cached_property
    def _lent_widely(self) -> dict[tuple[Kind, str], dict[str, None]]:
        """(Wider kind, type) → the answers of all rows."""
        result: dict[tuple[Kind, str], dict[str, None]] = {}
        for (kind, name), answers in self._lent.items():
            result.setdefault((entities.wider(kind), name), {}).update(answers)
        seen = Writing(sample.context for sample in self._more or ()).plain
        for sample in self._more or ():
            answer = _written(sample)
            if _can_be_lent(sample, answer) and (further := entities.kind_of(answer, sample.question, seen)):
                result.setdefault((entities.wider(further), _type(sample, answer)), {})[answer] = None
        return result


def _written(sample: EventSample) -> str:
    return mentions.spelling(entity := entity_of(sample), texts_of(sample)) or entity


def _type(sample: EventSample, answer: str) -> str:
    return entities.type_of(answer, asked_for(sample.question), sample.context)


def _can_be_lent(sample: EventSample, answer: str) -> bool:
    """Whether a row's answer is free text, and no word before a noun."""
    return sample.format in ("qa", "chat") and not (shape_of(answer) == "name" and is_modifier(answer, sample.context))


def propose(samples: Sequence[EventSample], answers: Sequence[str], options: SwapOptions) -> list[list[str]]:
    """Return the answers that a language model proposes in the place of each sample's; none for a reply without any.

    `answers` are written as in the contexts. The model sees the sentence with the answer, the question and the answer,
    and writes one other answer per line. Replies are kept on disk like a judge's, so a killed build resumes.
    """
    from d2e_sft.judge.judge import make_judge
    from d2e_sft.judge.options import JudgeOptions
    from d2e_sft.judge.templates import load_templates
    from d2e_sft.util.paths import cache_dir

    templates = load_templates(Path(__file__).with_name("prompts.yaml"), "propose")
    cache = cache_dir() / "swap"
    judge = make_judge(
        JudgeOptions(backend="local", model=options.model, dtype=options.dtype, max_tokens=_REPLY_TOKENS, cache=cache)
    )
    assert judge is not None
    prompts = []
    for sample, answer in zip(samples, answers, strict=True):
        sentences = (text for text in split_sentences(sample.context) if mentions.find(answer, text))
        prompts.append(templates.prompt(sample, "sample", [answer], sentence=next(sentences, sample.context)))
    return [texts or [] for texts in judge.ask(prompts, read_answers, job="swap", reminder=templates.reminder)]


def read_answers(reply: str) -> list[str] | None:
    """Return the answers in a reply, divided by line breaks or semicolons, without marks; None for an empty reply."""
    parts = re.split(r"[;\n]", reply)
    answers = [_LIST_MARK.sub("", part).strip().rstrip(".,").strip(_QUOTES).strip() for part in parts]
    return list(dict.fromkeys(filter(None, answers))) or None
