"""Revise one sample: another entity becomes its answer, in its contexts too, or there is a reason against it."""

from __future__ import annotations

from enum import Enum

from d2e_sft.data.built import SWAPPED
from d2e_sft.data.sample import EventSample
from d2e_sft.util.answers import WORD, normalise, words
from data_builders.swap.entities import NATIONS, TITLES
from data_builders.swap.kinds import YEAR, is_entity, shape_of
from data_builders.swap.numbers import number_forms
from data_builders.swap.options import Pool
from data_builders.swap.parts import renaming
from data_builders.text.mentions import (
    exchanged,
    is_named,
    is_part_of_a_name,
    is_replaceable,
    mentions,
    needs_other_article,
    neighbours,
    spelling,
    stands_alone,
    without,
)
from data_builders.text.stems import STOP_WORDS
from data_builders.text.word_lists import words_of

_MOST_YEARS_BETWEEN, _MOST_WORDS_MORE = 10, 2
_NO_NAME = TITLES | NATIONS  # capitalised words before a name that belong to no longer name


class Refusal(Enum):
    """The reason why a sample is not swapped."""

    LABEL = "the answer is a label"
    SEVERAL = "several right options"
    ABSENT = "the context lacks the answer"
    NO_ENTITY = "the answer is a clause or not an entity"
    OTHER_CASE = "the context writes it in another letter case"
    IN_QUESTION = "the question names the answer"
    OTHER_ANSWER = "the context has another accepted answer"
    LONGER_NAME = "the context has the answer only in a longer name"
    REPEATED_NUMBER = "the context has the number more than once"
    TRACES = "the context names a part or inflection of the answer"
    NO_OTHER = "no other answer of its kind fits"
    SWAPPED = "the row is swapped already"


def refusal_of(sample: EventSample) -> Refusal | None:
    """Return the reason why a sample cannot be swapped with any entity; None if it may be."""
    answer, texts = sample.answers[0], texts_of(sample)
    kinds = {
        Refusal.SWAPPED: SWAPPED in sample.meta,
        Refusal.LABEL: sample.format == "nli",
        Refusal.SEVERAL: bool(sample.options) and len(sample.answers) > 1,
        Refusal.ABSENT: not mentions(answer, sample.context),
        Refusal.NO_ENTITY: not is_entity(answer),
    }
    written = spelling(answer, texts)
    if written is None or any(kinds.values()):
        return next((refusal for refusal, holds in kinds.items() if holds), Refusal.OTHER_CASE)
    checks = {
        Refusal.IN_QUESTION: is_asked(written, asked_in(sample)),
        Refusal.OTHER_ANSWER: _has_other_answer(sample, written, texts),
        Refusal.LONGER_NAME: not stands_alone(written, sample.context, _NO_NAME),
        Refusal.REPEATED_NUMBER: _counts_several(written, sample.context),
    }
    return next((refusal for refusal, holds in checks.items() if holds), None)


def revised(sample: EventSample, other: str, pool: Pool) -> EventSample | Refusal:
    """Return the sample with the other entity as its answer; `refusal_of` must have found no reason against it.

    The result is `TRACES` if parts of the old answer would stay, and `NO_OTHER` if the other entity does not fit.

    Args:
        other: as the context would write it inside a sentence.
    """
    texts, asked = texts_of(sample), asked_in(sample)
    answer = spelling(sample.answers[0], texts)
    assert answer is not None, "refused before"
    if not _fits(sample, answer, other, pool):
        return Refusal.NO_OTHER
    rest = without(other, without(answer, texts))
    renamed = renaming(answer, other, rest, asked)
    if renamed is None:
        return Refusal.TRACES
    has_other = bool(mentions(other, texts))
    if renaming(other, answer, rest, asked) != {} or (has_other and renamed):
        return Refusal.NO_OTHER
    others = {answer: other, **renamed, **({other: answer} if has_other else {})}
    refined = sample.refined_context
    context = exchanged(sample.context, others)
    if any(mentions(one, context) for one in sample.answers[1:]):
        return Refusal.OTHER_ANSWER
    restored = exchanged(context, {new: old for old, new in others.items()})
    if restored.split() != sample.context.split():
        return Refusal.NO_OTHER
    chosen = next((one for one in sample.options if _is_same(one, other)), other)
    swapped = {"from": answer, "to": other, "pool": pool.value, **({"parts": renamed} if renamed else {})}
    return sample.model_copy(
        update={
            "id": f"{sample.id}-swapped",
            "context": context,
            "refined_context": None if refined is None else exchanged(refined, others),
            "answers": [chosen],
            "subset": "conflict" if sample.habit and sample.subset != "unknown" else sample.subset,
            "meta": {**sample.meta, SWAPPED: swapped},
        }
    )


def texts_of(sample: EventSample) -> str:
    """Return the contexts."""
    return f"{sample.context}\n{sample.refined_context or ''}"


def asked_in(sample: EventSample) -> str:
    """Return the texts around the context: the question, or all turns."""
    turns = sample.conversation.turns if sample.conversation else ()
    return "\n".join([sample.question, *(turn.content for turn in turns)])


def is_asked(entity: str, asked: str) -> bool:
    """Return whether a question has the entity, or all words of its name."""
    content = _content(entity)
    if is_named(entity, asked) if len(content) == 1 else mentions(entity, asked):
        return True
    found = {word.casefold() for word in WORD.findall(asked)}
    return bool(content) and all(word.casefold() in found for word in content)


def is_modifier(name: str, texts: str) -> bool:
    """Return whether a capitalised word stands before a noun: `Christian churches`."""
    after = [word for _, _, word in neighbours(name, texts)] if name[0].isupper() and " " not in name else []
    return any(word[:1].islower() and word not in STOP_WORDS | words_of("verb_forms") for word in after)


def _fits(sample: EventSample, answer: str, other: str, pool: Pool) -> bool:
    """Whether the other entity may be the answer; the habit would not be counterfactual."""
    texts, asked = texts_of(sample), asked_in(sample)
    taken = {text.casefold() for text in (*sample.answers, answer)}
    wrong = {normalise(text) for text in (*sample.habit, *sample.rejected)}
    is_new = shape_of(answer) in ("year", "date", "number") or pool in (Pool.LISTS, Pool.MODEL)
    shared = {word.casefold() for word in _content(answer)}
    names = [word for word in _content(other) if word[0].isupper() and word.casefold() not in shared]
    difference = abs(len(answer.split()) - len(other.split()))
    own = set(words(answer))
    against = (
        lambda: normalise(other) in wrong,
        lambda: other.casefold() in taken or "".join(words(other)) == "".join(words(answer)),
        lambda: set(words(other)) <= own or set(words(other)) >= own,
        lambda: is_asked(other, asked) or any(mentions(word, asked) for word in names),
        lambda: (is_new and mentions(other, texts)) or _number_is_asked(answer, other, asked),
        lambda: is_part_of_a_name(other, texts, _NO_NAME) or not is_replaceable(other, texts),
        lambda: not _keeps_order(answer, other, texts, any_distance=pool is Pool.OPTIONS),
        lambda: difference and _belongs_to_a_noun(answer, texts),
        lambda: difference > _MOST_WORDS_MORE and pool is Pool.DATASET,
        lambda: needs_other_article(answer, other, texts) or needs_other_article(other, answer, texts),
    )
    return not any(holds() for holds in against)


def _number_is_asked(answer: str, other: str, asked: str) -> bool:
    """Whether the question has the number that would change, in digits or words: `the fifth` for `5th Baron`."""
    changed = set(WORD.findall(answer)) - set(WORD.findall(other))
    return any(mentions(form, asked) for word in changed for form in number_forms(word))


def _belongs_to_a_noun(answer: str, texts: str) -> bool:
    """Whether a name is part of a longer one, or one word before a noun: `Christian churches`."""
    if is_part_of_a_name(answer, texts, _NO_NAME):
        return True
    return is_modifier(answer, texts)


def _is_same(one: str, other: str) -> bool:
    return one.casefold().rstrip(".") == other.casefold().rstrip(".")


def _has_other_answer(sample: EventSample, answer: str, texts: str) -> bool:
    """Whether another accepted answer stays; a part of the name may change with it."""
    rest = without(answer, texts)
    return any(mentions(other, rest) and not mentions(other, answer) for other in sample.answers[1:])


def _counts_several(answer: str, context: str) -> bool:
    """Whether a bare number may count several things: what follows its mentions differs."""
    if shape_of(answer) != "number" or len(answer.split()) > 1:
        return False
    return len({after.casefold() for _, _, after in neighbours(answer, context)}) > 1


def _keeps_order(answer: str, other: str, texts: str, *, any_distance: bool) -> bool:
    """Whether the two years are near each other with no year of the text in between, so the order stays."""
    years = [*YEAR.findall(answer)[-1:], *YEAR.findall(other)[-1:]]
    if len(years) < 2:
        return True
    first, last = sorted(years)
    near = any_distance or int(last) - int(first) <= _MOST_YEARS_BETWEEN
    return near and not any(first < year < last for year in YEAR.findall(texts))


def _content(entity: str) -> list[str]:
    found = WORD.findall(entity)
    return [word for word in found if word.casefold() not in STOP_WORDS and len(word) > 1] or found
