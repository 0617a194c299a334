"""Find the mentions of an entity in a text, check whether a replacement is safe, and replace them."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache

from d2e_sft.util.answers import WORD
from data_builders.text.words import STOP_WORDS, stem

_GONE = " \x00 "
_LAST_WORD, _NEXT_WORD = re.compile(r"([^\W_]+)[ -]$"), re.compile(r"[ -]([^\W_]+)")
_LONGEST_WORD = 40
_SHORTEST_STEM = 4  # shorter words are too often the beginning of unrelated ones


@lru_cache(maxsize=20_000)
def _pattern(entity: str) -> re.Pattern[str]:
    """The entity as whole words in any letter case, with any blanks and apostrophes; a number only if whole."""
    body = re.sub("['’‘ʼ]", "['’‘ʼ]", r"\s+".join(map(re.escape, entity.split())))
    before = r"(?<![\w-])(?<!\d[.,])" if entity[0].isdigit() else r"(?<!\w)" if entity[0].isalnum() else ""
    after = r"(?![\w-])(?![.,]\d)" if entity[-1].isdigit() else r"(?!\w)" if entity[-1].isalnum() else ""
    return re.compile(before + body + after, re.IGNORECASE)


def find(entity: str, text: str) -> list[str]:
    """Return each mention as it is written."""
    return _pattern(entity).findall(text)


def spans(entity: str, text: str) -> list[tuple[int, int]]:
    """Return the (start, end) of each mention."""
    return [match.span() for match in _pattern(entity).finditer(text)]


def without(entity: str, text: str) -> str:
    """Return the text without the mentions of the entity."""
    return _pattern(entity).sub(_GONE, text)


def is_replaceable(entity: str, text: str) -> bool:
    """Return whether all mentions are written like the entity, apart from an initial capital or all capitals."""
    return all(_written_like(entity, mention, entity) is not None for mention in find(entity, text))


def spelling(entity: str, text: str) -> str | None:
    """Return the entity as its mentions are written, in lower case if only some begin a sentence; None if they differ.

    `friction` for the entity `Friction` in `friction and heat`.
    """
    forms = {" ".join(mention.split()) for mention in find(entity, text)}
    forms_in_order = [entity, *sorted(forms, key=lambda form: (form[0].isupper(), form))]
    return next((form for form in forms_in_order if is_replaceable(form, text)), None)


def leaves_traces(entity: str, rest: str) -> bool:
    """Return whether a text without the entity's mentions may still refer to it.

    A trace is one of its words (`Obama`), a form of one (`barns`, `Israeli`), or its initials (`BBC`).
    """
    content = content_words(entity) or [entity]
    left = set(WORD.findall(rest))
    if len(initials(content)) > 1 and initials(content) in left:
        return True
    for word in content:
        forms = left if word[0].isupper() or word.isdigit() else {form.casefold() for form in left}
        if word in forms or any(is_derived(word, form) for form in forms):
            return True
    return False


def content_words(entity: str) -> list[str]:
    """Return the words and numbers of a name, without initials and words such as `of` and `the`."""
    found = (word for word in WORD.findall(entity) if word.casefold() not in STOP_WORDS)
    return [word for word in found if len(word) > 1 or word.isdigit()]


def initials(words: Iterable[str]) -> str:
    """Return the first letters of the words with a capital: `BBC`."""
    return "".join(word[0] for word in words if word[0].isupper())


def is_named(entity: str, text: str) -> bool:
    """Return whether a text mentions the entity or may refer to it otherwise; see `leaves_traces`."""
    return bool(find(entity, text)) or leaves_traces(entity, text)


def neighbours(entity: str, text: str) -> Iterator[tuple[str, str, str]]:
    """Yield each mention with the words that a blank or a hyphen joins to it, before and after; "" for none."""
    for mention in _pattern(entity).finditer(text):
        before = _LAST_WORD.search(text, max(0, mention.start() - _LONGEST_WORD), mention.start())
        after = _NEXT_WORD.match(text, mention.end())
        yield mention[0], before[1] if before else "", after[1] if after else ""


def is_part_of_a_name(entity: str, text: str, titles: Collection[str] = ()) -> bool:
    """Return whether a capitalised entity is next to a capitalised word: `Vicar General` in `Deputy Vicar General`.

    `titles` before it belong to no longer name: `King Harold`.
    """
    return any(_name_parts(entity, text, titles))


def stands_alone(entity: str, text: str, titles: Collection[str] = ()) -> bool:
    """Return whether some mention of the entity is not part of a longer name."""
    parts = _name_parts(entity, text, titles)
    return not parts or not all(parts)


def _name_parts(entity: str, text: str, titles: Collection[str]) -> list[bool]:
    """For each mention of the entity, whether it is part of a longer name."""
    pairs = [(before, after) for _, before, after in neighbours(entity, text)] if entity[:1].isupper() else []
    pairs = [("" if before in titles else before, after) for before, after in pairs]
    return [any(word[:1].isupper() and word.casefold() not in STOP_WORDS for word in pair) for pair in pairs]


def exchanged(text: str, replacements: Mapping[str, str]) -> str:
    """Return the text with every mention of each entity replaced, all at once, so that two can change places.

    A mention in another letter case is another word and stays: `will` for the entity `Will`.
    """
    patterns = [(entity, _pattern(entity)) for entity in sorted(replacements, key=len, reverse=True)]

    def other(match: re.Match[str]) -> str:
        mention = match[0]
        entity = next(entity for entity, pattern in patterns if pattern.fullmatch(mention))
        written = _written_like(entity, mention, replacements[entity])
        return mention if written is None else written

    return re.sub("|".join(pattern.pattern for _, pattern in patterns), other, text, flags=re.IGNORECASE)


def needs_other_article(entity: str, other: str, text: str) -> bool:
    """Return whether an `a` or `an` before a mention does not fit the other entity."""
    before = re.search(rf"\ban?\s+(?:{_pattern(entity).pattern})", text, re.IGNORECASE)
    return before is not None and (entity[0].casefold() in "aeiou") != (other[0].casefold() in "aeiou")


def _written_like(entity: str, mention: str, other: str) -> str | None:
    """`other` with the capitals that the mention has and the entity lacks; None if they differ in another way."""
    mention, entity = " ".join(mention.split()), " ".join(entity.split())
    if mention == entity:
        return other
    if mention == entity[:1].upper() + entity[1:]:
        return other[:1].upper() + other[1:]
    return other.upper() if mention == entity.upper() and len(mention) > 1 else None


def is_derived(word: str, other: str) -> bool:
    """Return whether one of two words is the other with an ending."""
    if min(len(word), len(other)) < _SHORTEST_STEM or word == other:
        return False
    return word.startswith(other) or other.startswith(word) or stem(word.casefold()) == stem(other.casefold())
