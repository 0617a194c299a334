"""The kind of entity that an answer is: by its shape, by the question, and by how the context writes it.

Answers of one kind can replace each other: two years, two numbers with as many digits and the same unit, two
capitalised names after `Which club …`, two single words after `Where …`. The meaning of words is not known here, so a
kind is narrow if the shape says little.
"""

from __future__ import annotations

import re

from d2e_sft.util.answers import CLAUSE_VERBS, asked_for, is_capitalised, words
from data_builders.text.stems import STOP_WORDS
from data_builders.text.word_lists import words_of

YEAR = re.compile(r"\b(?:1\d|20)\d\d\b")
_MONTH = (
    r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?|Oct(?:ober)?"
    r"|Nov(?:ember)?|Dec(?:ember)?)"
)
_DATE = re.compile(rf"\b{_MONTH}\b(?=.*\d)|\b\d+\D+{_MONTH}\b")
_NUMBER = re.compile(r"\W?\d\S*(?: \S+){0,2}")  # with its unit
_MOST_CONTENT_WORDS = {"name": 6, "phrase": 3}

Kind = tuple[str, ...]


def kind_of(answer: str, question: str, seen: str) -> Kind | None:
    """Return the kind of an answer; None if it is not an entity (a clause, `nothing`), so a swap would make no sense.

    The first part is `year`, `date`, `number`, `name` or `phrase`; answers are of one kind if all parts are equal.

    Args:
        seen: The dataset's contexts as `plain` gives them; they show how the answer is written elsewhere.
    """
    if not is_entity(answer):
        return None
    shape = shape_of(answer)
    if shape == "year":
        return ("year",)
    if shape == "date":
        return ("date", re.sub(r"\d+", "9", re.sub(_MONTH, "M", YEAR.sub("Y", answer))))
    if shape == "number":
        in_words = answer.casefold() in words_of("number_words")
        return ("number", "in words" if in_words else re.sub(r"\d", "9", answer))
    return _kind_of_words(answer, shape, question, seen)


def wider(kind: Kind) -> Kind:
    """Return the kind without the number of words, inner small words and commas: `the shop` and `the cold store`."""
    if kind[0] == "phrase":
        shape, asked, form, *flags = kind
        first = form.split()[0]
        return (shape, asked, "" if first in "A_" else first, *flags)
    return (*kind[:5], *kind[7:]) if kind[0] == "name" else kind


def is_entity(answer: str) -> bool:
    """Return whether the answer may name something, unlike `nothing` or `yes`."""
    is_word = bool(words(answer)) and answer[-1] not in ",;:"
    return is_word and answer.strip().casefold() not in words_of("not_entities")


def is_clause(answer: str) -> bool:
    """Return whether a verb makes the answer a clause."""
    return not CLAUSE_VERBS.isdisjoint(words(answer))


def shape_of(answer: str) -> str:
    """Return `year`, `date`, `number`, `name` (all words but `of`, `the` … have capitals) or `phrase`."""
    if YEAR.fullmatch(answer):
        return "year"
    if _DATE.search(answer):
        return "date"
    if _NUMBER.fullmatch(answer) or answer.casefold() in words_of("number_words"):
        return "number"
    return "name" if all(map(is_capitalised, _content(answer))) else "phrase"


def plain(text: str) -> str:
    """Return the text in lower case with single blanks, as `kind_of` needs it."""
    return " ".join(text.casefold().split())


def _content(answer: str) -> list[str]:
    return [part for part in answer.split() if part.casefold() not in STOP_WORDS]


def _kind_of_words(answer: str, shape: str, question: str, seen: str) -> Kind | None:
    parts, content = answer.split(), _content(answer)
    if not content or (shape == "phrase" and is_clause(answer)) or len(content) > _MOST_CONTENT_WORDS[shape]:
        return None
    asked, key = asked_for(question), plain(answer)
    after_the = f" the {key}" in seen
    if shape == "phrase":
        form = " ".join(part.casefold() if part.casefold() in STOP_WORDS else _letter_case(part) for part in parts)
        return (shape, asked, form, _flag("plural", re.search(r"[^s]s$", content[-1])), _flag("after the", after_the))
    flags = [
        _flag("after the", after_the),
        _flag("with the", parts[0].casefold() == "the"),
        _flag("quoted", answer[0] in "\"'“‘"),
        _flag("with a comma", "," in answer),
        _flag("with a preposition", any(part.casefold() in STOP_WORDS for part in parts[1:])),
        _flag("plural", len(parts) > 1 and re.search(r"[^s]s$", content[-1])),
    ]
    if asked == "who":
        # `who` also asks for countries and teams; but a person mostly has two names, and nothing is in a person.
        flags += [_flag("one word", len(parts) == 1), _flag("place", after_the or f" in {key}" in seen)]
    return (shape, asked, *flags)


def _letter_case(part: str) -> str:
    return "A" if is_capitalised(part) else "_"


def _flag(name: str, holds: object) -> str:
    return name if holds else ""


def without_names(question: str) -> str:
    """Return the question with `_` for names and numbers: `How old is the _` for `How old is the Grand Hotel?`."""
    content = set(_content(question))
    masked = ("_" if part in content and is_capitalised(part) else part.casefold() for part in question.split())
    return re.sub(r"_(?: _)+", "_", " ".join(masked))
