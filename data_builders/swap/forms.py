"""Whether an answer can stand where another one stood, and how it is then written."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from data_builders.swap.entities import NAMES
from data_builders.swap.kinds import is_clause, plain, shape_of
from data_builders.swap.parts import head
from data_builders.text.stems import STOP_WORDS
from data_builders.text.word_lists import words_of

_PLURAL = re.compile(r"[^suio]s$")
_WORDS_MORE = 3  # than the shorter answer, or twice as many
_LOWER = re.compile(r"(?<!\w)[a-z][\w’'-]+")
_INSIDE_SENTENCE = re.compile(r"(?<=[a-z,;] )[A-Z][\w’'-]+")


@dataclass(frozen=True)
class Seen:
    """How a dataset's contexts write words."""

    contexts: tuple[str, ...]

    @classmethod
    def of(cls, contexts: Iterable[str]) -> Seen:
        """Return how these contexts write words."""
        return cls(tuple(dict.fromkeys(contexts)))

    @cached_property
    def plain(self) -> str:
        """The contexts as `kind_of` needs them."""
        return plain(" ".join(self.contexts))

    @cached_property
    def lower(self) -> frozenset[str]:
        """Words in lower case."""
        return frozenset(word for text in self.contexts for word in _LOWER.findall(text))

    @cached_property
    def names(self) -> frozenset[str]:
        """Words that have a capital inside sentences and are nowhere in lower case."""
        capitalised = {word for text in self.contexts for word in _INSIDE_SENTENCE.findall(text)}
        return frozenset(word for word in capitalised if word.casefold() not in self.lower)

    def fitted(self, other: str, answer: str) -> str:
        """Return the other answer with an initial capital and a full stop only where the answer has them.

        Names keep their capital, and abbreviations their stop.
        """
        if other.endswith(".") and not answer.endswith(".") and not other.rpartition(" ")[2][:1].isupper():
            other = other.rstrip(".")
        first, *rest = other.split()
        if not (answer[0].islower() and other[0].isupper()):
            return other
        word, known = first.casefold(), first in self.names or first in NAMES
        is_common = word in STOP_WORDS or (word in self.lower and not known)
        is_name = known or first != first.capitalize() or any(_is_name(one) for one in rest)
        return other[0].lower() + other[1:] if is_common or not is_name else other


def same_form(answer: str, other: str) -> bool:
    """Return whether both are a name, number, date or phrase, begin alike, and have about as many words.

    Phrases must also agree in number, since a verb may follow.
    """
    shapes = shape_of(answer), shape_of(other)
    if shapes[0] != shapes[1] or is_clause(answer) != is_clause(other):
        return False
    if shapes[0] in ("year", "date", "number"):
        return len({re.sub(r"[\d.,]+", "9", text.casefold()).partition(" ")[2] for text in (answer, other)}) == 1
    counts = sorted(len(text.split()) for text in (answer, other))
    if counts[1] > max(counts[0] + _WORDS_MORE, 2 * counts[0]) or _opening(answer) != _opening(other):
        return False
    return shapes[0] == "name" or bool(_PLURAL.search(head(answer))) == bool(_PLURAL.search(head(other)))


def _opening(phrase: str) -> str:
    """The kind of the first word."""
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


def _is_name(word: str) -> bool:
    return word[0].isupper() and word.casefold() not in STOP_WORDS
