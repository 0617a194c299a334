"""How else a text speaks of an entity: by a part of its name, by a form of its words, by its head after `the`.

Such words change together with the entity (`Obama` with `Barack Obama`), or the entity cannot be replaced.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from itertools import pairwise

from d2e_sft.util.answers import WORD, words
from data_builders.swap.entities import DEMONYMS, NATIONS, TITLES, TYPES
from data_builders.swap.kinds import shape_of
from data_builders.text.mentions import is_derived, mentions, neighbours
from data_builders.text.stems import STOP_WORDS
from data_builders.text.word_lists import words_of

# Words before the head of a phrase that was named before: `the barn`.
_DEFINITE = frozenset({"the", "this", "that", "these", "those", "such", "its"})
_JOINED = re.compile(r",\s+|\b(?:and|or)\b")
_GONE = " \x00 "


def renaming(entity: str, other: str, rest: str, asked: str) -> dict[str, str] | None:
    """Return what changes together with the entity if `other` replaces it; None if a trace of it would stay.

    Words that both have are no traces.

    Args:
        rest: The texts without the mentions of the entity.
        asked: The question, which does not change.
    """
    shared = frozenset(words(entity)) & frozenset(words(other))
    renamed: dict[str, str] = {}
    if (native := DEMONYMS.get(entity)) and mentions(native, rest):
        if (new := DEMONYMS.get(other)) is None or mentions(native, asked) or mentions(new, rest):
            return None
        renamed[native], rest = new, _without(native, rest)
    own_types = [word for word in entity.split() if word in TYPES and word.casefold() not in shared]
    if any(
        re.search(rf"\b(?:the|this|that|its) {word}\b(?! (?:of|for)\b)", rest, re.IGNORECASE) for word in own_types
    ):
        return None
    parts = entity.split() if shape_of(entity) in ("name", "phrase") else []
    for start, end in _runs(parts):
        part = _bare(" ".join(parts[start:end]))
        alone, rest_of_it = _alone(part, rest), _without(part, rest)
        if not alone or part in NATIONS | TYPES or shared.issuperset(words(part)):
            rest = rest_of_it
            continue
        new_part = _counterpart(start, end, len(parts), other.split())
        if new_part is None or new_part in renamed.values() or mentions(part, asked) or mentions(new_part, rest):
            return None
        renamed[part], rest = new_part, rest_of_it
    return None if has_traces(entity, other, rest, shared) else renamed


def has_traces(entity: str, other: str, rest: str, shared: Collection[str]) -> bool:
    """Return whether a text without the entity and its short forms may still refer to it.

    A trace is an inflection or derivation of one of its words (`barns`, `Israeli`), its initials (`BBC`), or one of
    its heads after `the` (`the barn` for `the red barn`).
    """
    content = [word for word in WORD.findall(entity) if word.casefold() not in STOP_WORDS and len(word) > 1]
    content = content or [entity]
    found = WORD.findall(rest)
    initials = _initials(content)
    if len(initials) > 1 and initials in found and initials != _initials(other.split()):
        return True
    for word in content:
        if word.casefold() in shared:
            continue
        if word.isdigit():
            if _is_same_number(word, found, shared, alone=len(content) == 1):
                return True
        elif len(content) == 1:
            others = found if word[0].isupper() else [one.casefold() for one in found]
            if word in others or any(is_derived(word, one) for one in others):
                return True
        elif word[0].isupper():
            if word not in TYPES and any(is_derived(word, one) for one in found if one[0].isupper()):
                return True
        elif word in {head(part) for part in _JOINED.split(entity)} and _is_named_again(word, found):
            return True
    return False


def head(phrase: str) -> str:
    """Return the word that says what a phrase names: the last one before a preposition."""
    found, cues = words(phrase), words_of("noun_cues", "placing")
    end = next((i for i, word in enumerate(found) if i and word in cues), len(found))
    return found[end - 1] if found else ""


def _runs(parts: list[str]) -> Iterator[tuple[int, int]]:
    """The places of the short forms that a capitalised name may have, the longest first."""
    for length in range(len(parts) - 1, 0, -1):
        for start in range(len(parts) - length + 1):
            ends = (_bare(parts[start]), _bare(parts[start + length - 1]))
            if all(len(word) > 1 and word[0].isupper() and word.casefold() not in STOP_WORDS for word in ends):
                yield start, start + length


def _bare(part: str) -> str:
    return part.strip("\"'“”‘’().,;:")


def _alone(part: str, text: str) -> bool:
    """Whether a mention in this letter case is not part of a longer name."""
    for mention, before, after in neighbours(part, text):
        is_longer = any(
            word[:1].isupper() and word.casefold() not in STOP_WORDS and word not in TITLES | NATIONS
            for word in (before, after)
        )
        if " ".join(mention.split()) in (part, part.upper()) and not is_longer:
            return True
    return False


def _without(part: str, text: str) -> str:
    return re.sub(rf"(?<!\w)(?:{re.escape(part)}|{re.escape(part.upper())})(?!\w)", _GONE, text)


def _counterpart(start: int, end: int, of: int, other: list[str]) -> str | None:
    """The words of the other name at the place of a short form: its first, its last, or the same ones."""
    count = min(end - start, max(1, len(other) - 1))
    if of == len(other):
        chosen = other[start:end]
    elif end == of:
        chosen = other[-count:]
    elif start == 0:
        chosen = other[:count]
    else:
        return None
    text = _bare(" ".join(chosen))
    return text if text[:1].isupper() and text.casefold() not in STOP_WORDS else None


def _initials(content: list[str]) -> str:
    return "".join(word[0] for word in content if word[0].isupper())


def _is_same_number(word: str, found: list[str], shared: Collection[str], *, alone: bool) -> bool:
    """Whether a number is there again, next to a word that the entity has."""
    places = [place for place, one in enumerate(found) if one == word]
    beside = {found[at].casefold() for place in places for at in (place - 1, place + 1) if 0 <= at < len(found)}
    return bool(places) if alone else not beside.isdisjoint(set(shared) - STOP_WORDS)


def _is_named_again(word: str, found: list[str]) -> bool:
    lower = [one.casefold() for one in found]
    return any((one == word or is_derived(word, one)) and before in _DEFINITE for before, one in pairwise(lower))
