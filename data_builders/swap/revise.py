"""Revise one sample: another entity becomes its answer, in its contexts too, or there is a reason against it.

A text may also speak of an entity by a part of its name, by a form of its words, or by its head after `the`. Such
words change together with the entity (`Obama` with `Barack Obama`), or the entity cannot be replaced.
"""

import re
from collections.abc import Iterator, Sequence
from enum import StrEnum
from functools import partial
from itertools import pairwise, takewhile

from d2e_sft.data.built import SWAPPED
from d2e_sft.data.sample import EventSample
from d2e_sft.util.answers import WORD, normalise, words
from data_builders.swap.entities import (
    DEMONYMS,
    NATIONS,
    TITLES,
    TYPES,
    YEAR,
    in_a_persons_name,
    in_digits,
    is_entity,
    shape_of,
)
from data_builders.text import mentions
from data_builders.text.words import STOP_WORDS, stem, words_of

_MOST_YEARS_BETWEEN, _MOST_WORDS_MORE = 10, 2
_MOST_WORDS_BETWEEN = 2  # a number and what it counts: `two last long days`
_BEFORE_NAMES = TITLES | NATIONS  # capitalised words before a name that belong to no longer name
# Words before the head of a phrase that was named before: `the barn`.
_DEFINITE = frozenset({"the", "this", "that", "these", "those", "such", "its"})
_JOINED = re.compile(r",\s+|\b(?:and|or)\b")
_GONE = " \x00 "
_ABBREVIATED = re.compile(r"^$|(?:^|\s)[A-Za-z]$|\.\w*$")  # the full stop after it is a part of the word: `U.S.`
_GOES_ON = re.compile(r"\.(?:\s+[a-z]|[\w,;:])")  # a full stop inside a sentence


class Pool(StrEnum):
    """Where the other entity comes from."""

    OPTIONS = "options"
    LISTS = "lists"
    DATASET = "dataset"
    MODEL = "model"


class Refusal(StrEnum):
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
    answer, texts = entity_of(sample), texts_of(sample)
    written = mentions.spelling(answer, texts)
    checks = {
        Refusal.SWAPPED: lambda: SWAPPED in sample.meta,
        Refusal.LABEL: lambda: sample.format == "nli",
        Refusal.SEVERAL: lambda: bool(sample.options) and len(sample.answers) > 1,
        Refusal.ABSENT: lambda: not mentions.find(answer, sample.context),
        Refusal.NO_ENTITY: lambda: not is_entity(answer),
        Refusal.OTHER_CASE: lambda: written is None,
        Refusal.IN_QUESTION: lambda: _is_asked(str(written), _asked_in(sample)),
        Refusal.OTHER_ANSWER: lambda: _has_other_answer(sample, str(written), texts),
        Refusal.LONGER_NAME: lambda: not mentions.stands_alone(str(written), sample.context, _BEFORE_NAMES),
        Refusal.TRACES: lambda: in_a_persons_name(str(written), texts),
        Refusal.REPEATED_NUMBER: lambda: _counts_several(str(written), sample.context),
    }
    return next((refusal for refusal, holds in checks.items() if holds()), None)


def revised(sample: EventSample, other: str, pool: Pool) -> EventSample | Refusal:
    """Return the sample with the other entity as its answer; `refusal_of` must have found no reason against it.

    The result is `TRACES` if parts of the old answer would stay, and `NO_OTHER` if the other entity does not fit.
    `other` is written as inside a sentence. A full stop that ends the answer stays.
    """
    texts, question, entity = texts_of(sample), _asked_in(sample), entity_of(sample)
    answer = mentions.spelling(entity, texts)
    assert answer is not None, "refused before"
    if not _fits(sample, answer, other, pool):
        return Refusal.NO_OTHER
    rest = mentions.without(other, mentions.without(answer, texts))
    renamed = _renaming(answer, other, rest, question)
    if renamed is None:
        return Refusal.TRACES
    has_other = bool(mentions.find(other, texts))
    if _renaming(other, answer, rest, question) != {} or (has_other and renamed):
        return Refusal.NO_OTHER
    replacements = {answer: other, **renamed, **({other: answer} if has_other else {})}
    refined, context = sample.refined_context, mentions.exchanged(sample.context, replacements)
    if any(mentions.find(accepted, context) for accepted in sample.answers[1:]):
        return Refusal.OTHER_ANSWER
    if mentions.exchanged(context, {new: old for old, new in replacements.items()}).split() != sample.context.split():
        return Refusal.NO_OTHER
    swapped = {"from": answer, "to": other, "pool": pool.value, **({"parts": renamed} if renamed else {})}
    folded = other.casefold().rstrip(".")
    ended = other if other.endswith(".") else other + sample.answers[0].removeprefix(entity)
    return sample.model_copy(
        update={
            "id": f"{sample.id}-swapped",
            "context": context,
            "refined_context": None if refined is None else mentions.exchanged(refined, replacements),
            "answers": [next((text for text in sample.options if text.casefold().rstrip(".") == folded), ended)],
            "subset": "conflict" if sample.habit and sample.subset != "unknown" else sample.subset,
            "meta": {**sample.meta, SWAPPED: swapped},
        }
    )


def entity_of(sample: EventSample) -> str:
    """Return the answer without a full stop that ends it as a sentence; that of `Acme Corp.` is a part of the name."""
    answer, entity = sample.answers[0], sample.answers[0].removesuffix(".")
    if sample.options or entity == answer or _ABBREVIATED.search(entity):
        return answer
    texts = texts_of(sample)
    return answer if any(_GOES_ON.match(texts, end) for _, end in mentions.spans(entity, texts)) else entity


def texts_of(sample: EventSample) -> str:
    return f"{sample.context}\n{sample.refined_context or ''}"


def is_modifier(name: str, texts: str) -> bool:
    """Return whether a capitalised word stands before a noun: `Christian churches`."""
    after = [word for _, _, word in mentions.neighbours(name, texts)] if name[0].isupper() and " " not in name else []
    return any(word[:1].islower() and word not in STOP_WORDS | words_of("verb_forms") for word in after)


def _asked_in(sample: EventSample) -> str:
    """The texts around the context: the question, or all turns."""
    turns = sample.conversation.turns if sample.conversation else ()
    return "\n".join([sample.question, *(turn.content for turn in turns)])


def _is_asked(entity: str, question: str) -> bool:
    """Whether a question has the entity, or all words of its name."""
    content = mentions.content_words(entity) or WORD.findall(entity)
    question = re.sub(r"\bmay\b", "", question)  # the verb, not the month
    if mentions.is_named(entity, question) if len(content) == 1 else mentions.find(entity, question):
        return True
    question_words = {word.casefold() for word in WORD.findall(question)}
    return bool(content) and all(word.casefold() in question_words for word in content)


def _fits(sample: EventSample, answer: str, other: str, pool: Pool) -> bool:
    """Whether the other entity may be the answer; the habit would not be counterfactual."""
    texts, question = texts_of(sample), _asked_in(sample)
    taken = {text.casefold() for text in (*sample.answers, answer)}
    wrong = {normalise(text) for text in (*sample.habit, *sample.rejected)}
    is_new = shape_of(answer) in ("year", "date", "number") or pool in (Pool.LISTS, Pool.MODEL)
    shared = {word.casefold() for word in mentions.content_words(answer) or WORD.findall(answer)}
    content = mentions.content_words(other) or WORD.findall(other)
    names = [word for word in content if word[0].isupper() and word.casefold() not in shared]
    difference = abs(len(answer.split()) - len(other.split()))
    old, new = words(answer), words(other)
    longer = partial(mentions.is_part_of_a_name, text=texts, titles=_BEFORE_NAMES)
    pairs = ((answer, other), (other, answer))
    against = (
        lambda: normalise(other) in wrong,
        lambda: other.casefold() in taken or "".join(new) == "".join(old),
        lambda: set(new) <= set(old) or set(new) >= set(old),
        lambda: _is_asked(other, question) or any(mentions.find(word, question) for word in names),
        lambda: (is_new and mentions.find(other, texts)) or _number_is_asked(answer, other, question),
        lambda: longer(other) or not mentions.is_replaceable(other, texts),
        lambda: not _keeps_order(answer, other, texts, any_distance=pool is Pool.OPTIONS),
        lambda: difference and (longer(answer) or is_modifier(answer, texts)),
        lambda: difference > _MOST_WORDS_MORE and pool is Pool.DATASET,
        lambda: any(mentions.needs_other_article(*pair, texts) for pair in pairs),
    )
    return not any(holds() for holds in against)


def _number_is_asked(answer: str, other: str, question: str) -> bool:
    """Whether the question has the number that would change, in digits or words: `the fifth` for `5th Baron`."""
    changed = set(WORD.findall(in_digits(answer))) - set(WORD.findall(in_digits(other)))
    return any(word.isdigit() and mentions.find(word, in_digits(question)) for word in changed)


def _has_other_answer(sample: EventSample, answer: str, texts: str) -> bool:
    """Whether another accepted answer stays; a part of the name may change with it."""
    rest = mentions.without(answer, texts)
    return any(mentions.find(extra, rest) and not mentions.find(extra, answer) for extra in sample.answers[1:])


def _counts_several(answer: str, context: str) -> bool:
    """Whether a bare number may count several things: what follows its mentions differs."""
    if shape_of(answer) != "number" or len(answer.split()) > 1:
        return False
    return len({after.casefold() for _, _, after in mentions.neighbours(answer, context)}) > 1


def _keeps_order(answer: str, other: str, texts: str, *, any_distance: bool) -> bool:
    """Whether the two years are near each other with no year of the text in between, so the order stays."""
    years = [*YEAR.findall(answer)[-1:], *YEAR.findall(other)[-1:]]
    if len(years) < 2:
        return True
    first, last = sorted(years)
    is_near = any_distance or int(last) - int(first) <= _MOST_YEARS_BETWEEN
    return is_near and not any(first < year < last for year in YEAR.findall(texts))


def _renaming(entity: str, other: str, rest: str, question: str) -> dict[str, str] | None:
    """What changes together with the entity if `other` replaces it; None if the `rest` of the texts has a trace of it.

    Words that both have are no traces.
    """
    shared = frozenset(words(entity)) & frozenset(words(other))
    renamed: dict[str, str] = {}
    if (native := DEMONYMS.get(entity)) and mentions.find(native, rest):
        if (new := DEMONYMS.get(other)) is None or mentions.find(native, question) or mentions.find(new, rest):
            return None
        renamed[native], rest = new, _without(native, rest)
    types = [word for word in entity.split() if word in TYPES and word.casefold() not in shared]
    called = (rf"\b(?:the|this|that|its) {word}\b(?! (?:of|for)\b)" for word in types)
    if any(re.search(pattern, rest, re.IGNORECASE) for pattern in called):
        return None
    parts = entity.split() if shape_of(entity) in ("name", "phrase") else []
    for start, end in _runs(parts):
        part = _bare(" ".join(parts[start:end]))
        stays = part in NATIONS | TYPES or shared.issuperset(words(part)) or not _stands_alone(part, rest)
        if not stays:
            new_part = _counterpart(start, end, len(parts), other.split())
            if new_part is None or new_part in renamed.values():
                return None
            if mentions.find(part, question) or mentions.find(new_part, rest):
                return None
            renamed[part] = new_part
        rest = _without(part, rest)
    return None if has_traces(entity, other, rest) else renamed


def has_traces(entity: str, other: str, rest: str) -> bool:
    """Return whether a text without the entity and its short forms may still refer to it; words of both do not count.

    A trace is an inflection or derivation of one of its words (`barns`, `Israeli`), its initials (`BBC`), one of its
    heads after `the` (`the barn` for `the red barn`), or its number in any form (`five days`, `the fifth day`).
    """
    content, left = mentions.content_words(entity), WORD.findall(rest)
    initials = mentions.initials(content)
    if len(initials) > 1 and initials in left and initials != mentions.initials(other.split()):
        return True
    entity, other, left = in_digits(entity), in_digits(other), WORD.findall(in_digits(rest))
    content, lower = mentions.content_words(entity) or [entity], [word.casefold() for word in left]
    heads, alone = {head(part) for part in _JOINED.split(entity)}, len(content) == 1
    shared = frozenset(words(entity)) & frozenset(words(other))

    def is_left(word: str) -> bool:
        if word.isdigit():  # near a word that both have
            places = [place for place, text in enumerate(left) if text == word]
            near = {stem(text.casefold()) for place in places for text in _beside(left, place)}
            return bool(places) if alone else not near.isdisjoint(map(stem, shared - STOP_WORDS))
        if alone:
            forms = left if word[0].isupper() else lower
            return word in forms or any(mentions.is_derived(word, text) for text in forms)
        if word[0].isupper():
            return word not in TYPES and any(mentions.is_derived(word, text) for text in left if text[0].isupper())
        named = [text for before, text in pairwise(lower) if before in _DEFINITE]
        return word in heads and any(text == word or mentions.is_derived(word, text) for text in named)

    return any(is_left(word) for word in content if word.casefold() not in shared)


def _beside(texts: Sequence[str], place: int) -> list[str]:
    """The words next to a number, and a few after it if no capital or number is between."""
    after = texts[place + 1 : place + 2 + _MOST_WORDS_BETWEEN]
    return [*texts[max(place - 1, 0) : place], *after[:1], *takewhile(str.islower, after)]


def head(phrase: str) -> str:
    """Return the word that says what a phrase names: the last one before a preposition."""
    phrase_words, cues = words(phrase), words_of("noun_cues", "placing")
    end = next((i for i, word in enumerate(phrase_words) if i and word in cues), len(phrase_words))
    return phrase_words[end - 1] if phrase_words else ""


def _runs(parts: list[str]) -> Iterator[tuple[int, int]]:
    """The places of the short forms that a capitalised name may have, the longest first."""
    for length in range(len(parts) - 1, 0, -1):
        for start in range(len(parts) - length + 1):
            ends = (_bare(parts[start]), _bare(parts[start + length - 1]))
            if all(len(word) > 1 and _is_capitalised(word) for word in ends):
                yield start, start + length


def _bare(part: str) -> str:
    return part.strip("\"'“”‘’().,;:")


def _is_capitalised(text: str) -> bool:
    return text[:1].isupper() and text.casefold() not in STOP_WORDS


def _stands_alone(part: str, text: str) -> bool:
    """Whether a mention in this letter case is not part of a longer name."""
    for mention, *beside in mentions.neighbours(part, text):
        is_longer = any(_is_capitalised(word) and word not in _BEFORE_NAMES for word in beside)
        if " ".join(mention.split()) in (part, part.upper()) and not is_longer:
            return True
    return False


def _without(part: str, text: str) -> str:
    return re.sub(rf"(?<!\w)(?:{re.escape(part)}|{re.escape(part.upper())})(?!\w)", _GONE, text)


def _counterpart(start: int, end: int, of: int, other: list[str]) -> str | None:
    """The words of the other name at the place of a short form: its first, its last, or the same ones."""
    count = min(end - start, max(1, len(other) - 1))
    if of != len(other) and end != of and start != 0:
        return None
    chosen = other[start:end] if of == len(other) else other[-count:] if end == of else other[:count]
    text = _bare(" ".join(chosen))
    return text if _is_capitalised(text) else None
