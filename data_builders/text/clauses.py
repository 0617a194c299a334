"""Cut a sentence where its clauses and phrases begin, without a parser.

A comma, a conjunction or a relative pronoun may begin a piece. It does if its first words, and the verbs before and
after them, look like it; where that is unsure there is no cut. `clause_links.py` tells which pieces need each other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from typing import Literal

from data_builders.text.verbs import begins_with_verb, predicate_place
from data_builders.text.word_lists import words_of

Kind = Literal["main", "adjunct", "remark", "phrase", "item", "rest", "wrapper"]

_TOKEN = re.compile(r"\d[\d.,]*\d|\w[\w'’.-]*\w|\w|--+|[^\w\s]")
_YEAR = re.compile(r"(?:19|20)\d\d")
_LONGEST_TIME = 6
_NO_NOUN = re.compile(r"(?:ing|ed|ly|able|ful|ive|ous|ant|(?<!m)ent)$|^(?:how|what|which|there|here)$")
_RAISING = words_of("allowing", "allowing_too", "nominatives")  # before "prices to rise"
_APART = re.compile(r"\s|,\s|[—;]|--")  # before a piece: not "Ba(K,Na)2"
_JOINING = ("and", "but", "or", "so", "yet", "nor")
_MARKS = (",", "—", "–", "--", "---")
_STOPS = (".", "!", "?", ";", "…", ":")
_BRACKETS = {"(": ")", "[": "]"}
_ADJECTIVE = re.compile(
    r"\w{2,}(?:al|ic|ive|ous|ful|less|ble|ant|ent|ed|ing|y)$|large|small|big|good|new|old|long|low"
)


@dataclass
class Piece:
    """A span of a sentence before its place in the text is known; `kind` and `needs` as in `spans.Span`.

    Attributes:
        start: Its first character in the sentence.
        words: Its words and marks, in lower case.
        verb: The place of its finite verb in `bare`; None if it has none.
    """

    start: int
    words: list[str]
    kind: Kind = "main"
    needs: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.marked = bool(self.words) and self.words[0] in _MARKS
        rest = self.words[1:] if self.marked else self.words
        self.joined = bool(rest) and rest[0] in _JOINING
        self.bare = rest[1:] if self.joined else rest
        self.verb = predicate_place(self.bare)
        self.bracketed = bool(self.words) and self.words[0] in _BRACKETS

    @property
    def dangles(self) -> bool:
        """Whether its last word asks for another one: "is", "of", "that"."""
        return bool(self.bare) and self.bare[-1] in words_of("dangling") and self.words[-1] not in _STOPS

    @property
    def leans(self) -> bool:
        """Whether its first words show that it is a clause or phrase that leans on another one."""
        first, second, *_ = [*self.bare, "", ""]
        if self.bracketed or first in words_of("clause_openers") or _opens_phrase(self.bare, 0):
            return True
        if first == "that":
            return self.start > 0 and not self.joined
        gerund = (
            first.endswith("ing")
            and first != "during"
            and (first not in words_of("not_gerunds") or second in words_of("continues_noun"))
        )
        timed = len(self.bare) <= _LONGEST_TIME and self.bare[-1:] and self.bare[-1] in words_of("times")
        if self.verb is None and (gerund or timed or " ".join(self.bare) == "as such"):
            return True
        if gerund and self.marked:
            return True
        if self.verb is not None:
            return self.marked and first not in words_of("nominatives", "determiners") and first in words_of("remarks")
        participle = first.endswith("ed") and second in words_of("noun_cues")
        adverb = first.endswith("ly") and len(first) > 4
        return participle or adverb or first in words_of("remarks", "noun_cues")


def cut_clauses(sentence: str) -> list[Piece]:
    """Return the pieces of a sentence, in order; the first begins at 0."""
    found = list(_TOKEN.finditer(sentence))
    words = [token.group().casefold().replace("’", "'") for token in found]
    capital = [token.group()[0].isupper() for token in found]
    places = [
        0,
        *(place for place in _cuts(words, capital) if _APART.match(sentence, found[place - 1].end())),
        len(words),
    ]
    return [Piece(found[first].start() if first else 0, words[first:end]) for first, end in pairwise(places)]


def _cuts(words: Sequence[str], capital: Sequence[bool]) -> Iterator[int]:
    """The places of the words at which a piece begins, apart from the first."""
    last, closing = 0, ""
    for place in range(1, len(words)):
        word, before = words[place], words[place - 1]
        if closing:
            closing = "" if before == closing and place - 1 > last else closing
            if closing or word in _STOPS or before == '"':
                continue
            cut = True
        else:
            if before in _BRACKETS or before in ('"', "“"):
                closing = _BRACKETS.get(before, "”" if before == "“" else '"')
                continue
            cut = _begins(words, last, place, capital)
        if cut and place < len(words) - 1:
            yield place
            last = place
        if word in _BRACKETS:
            closing = _BRACKETS[word]


def _begins(words: Sequence[str], last: int, place: int, capital: Sequence[bool]) -> bool:
    """Whether a piece begins at a word; the piece before it began at `last`."""
    word, before, after = words[place], words[place - 1], words[place + 1] if place + 1 < len(words) else ""
    if not after:
        return False
    if before in _STOPS or word in _BRACKETS:
        ended = before in (";", "!", "?") or (before == "." and capital[place] and len(words[place - 2]) > 3)
        return word in _BRACKETS or (ended and word not in _STOPS)
    if word in _MARKS:
        return after not in _STOPS and not _inside_phrase(words, last, place)
    if before in (*_MARKS, *_JOINING) or before in words_of("determiners", "prepositions"):
        return False
    done = words[last] in words_of("placing") or predicate_place(list(words[last:place])) is not None
    if word in _JOINING:
        rest = list(_until_mark(words, place + 1)) or [""]
        subject = (
            rest[0] in words_of("nominatives", "by_reference", "determiners") | {"there", "i"} or capital[place + 1]
        )
        shared = before in words_of("plain_forms") and begins_with_verb(rest)  # "meet or exceed standards"
        joins = (begins_with_verb(rest) and not shared) or (subject and predicate_place(rest) is not None)
        return done and joins and "both" not in words[last:place]
    alone = all(one in _MARKS or one in words_of("focus") for one in words[last:place])
    begun = last and words[last] not in _JOINING and word not in ("that", "who", "which", "whose", "whom")
    return not alone and (((done or begun) and _opens(words, place)) or _places(words, last, place))


def _places(words: Sequence[str], last: int, place: int) -> bool:
    """Whether a phrase begins at a preposition behind a noun that the clause can end with: "sales | in Peru"."""
    word, before = words[place], words[place - 1]
    adjective = _NO_NOUN.search(before) and before not in words_of("not_gerunds")
    if word not in words_of("placing") or not before.isalpha() or adjective:
        return False
    if before in words_of("auxiliaries", "modals", "adverbs", "dangling", "nominatives", "predicatives"):
        return False
    acting = words_of("auxiliaries", "modals", "adverbs", "nominatives") | {"to", "and", "or", "who", "which", "that"}
    if before in words_of("verb_forms") and words[place - 2] in acting:
        return False
    if word == "to" and (not begins_with_verb(list(words[place + 1 :])) or not _RAISING.isdisjoint(words[last:place])):
        return False
    phrase = takewhile(
        lambda one: one not in _JOINING and one not in words_of("clause_openers"), _until_mark(words, place + 1)
    )
    if not words_of("auxiliaries", "modals").isdisjoint(phrase):
        return False  # "people in Peru are"
    verb = predicate_place(list(words[last:place]))
    return words[last] in words_of("placing") or (verb is not None and last + verb < place - 2)


def _inside_phrase(words: Sequence[str], last: int, place: int) -> bool:
    """Whether a mark is part of a date or between the adjectives of one noun ("a large, old firm")."""
    before, after = words[place - 1], words[place + 1]
    if before[0].isdigit() and after[0].isdigit():
        return True
    apart = words_of("remarks", "noun_cues", "nominatives", "determiners", "clause_openers")
    determined = place - 2 >= last and words[place - 2] in words_of("determiners")
    return determined and bool(_ADJECTIVE.match(before)) and after not in apart


def _opens(words: Sequence[str], place: int) -> bool:
    """Whether a clause or phrase that leans on another one begins at a word, also without a comma."""
    word, before = words[place], words[place - 1]
    complement = before in words_of("auxiliaries", "dangling")  # "is based on"
    if (_opens_phrase(words, place) and not complement) or _tells_time(words, place):
        return True
    rest = list(_until_mark(words, place + 1))
    if word == "that":
        known = before in words_of("base_forms", "auxiliaries", "modals", "s_forms", "past_forms", "irregular_pasts")
        return begins_with_verb(rest) and not known and not before.endswith("ly")
    if word not in words_of("clause_openers") or before in words_of("before_as" if word == "as" else "focus"):
        return False
    if word in ("when", "where", "who", "which", "if", "whom", "whose") and _takes_clause(before):
        return False
    gerund = bool(rest) and rest[0].endswith("ing") and word in ("while", "when", "after", "before", "since")
    return (
        gerund
        or word in ("after", "before", "since", "until", "because", "although", "whereas", "unless")
        or predicate_place(rest) is not None
        or (word in ("who", "which") and begins_with_verb(rest))
    )


def _tells_time(words: Sequence[str], place: int) -> bool:
    """Whether a phrase of time begins at a word and ends its piece: "by 2025", "over the next few years"."""
    if words[place] not in words_of("time_openers"):
        return False
    phrase = list(_until_mark(words, place + 1))[:_LONGEST_TIME]
    for length, word in enumerate(phrase, start=1):
        if word in words_of("times") or _YEAR.fullmatch(word):
            after = place + length + 1
            ended = after >= len(words) or words[after] in (*_MARKS, *_STOPS, *_BRACKETS, *_JOINING)
            return ended or words[after] in words_of("clause_openers") or _opens_phrase(words, after)
    return False


def _takes_clause(word: str) -> bool:
    """Whether a question may be the object of a word: "know when", "see if"."""
    return word in words_of("base_forms", "everyday", "modals", "auxiliaries", "asking")


def _opens_phrase(words: Sequence[str], place: int) -> bool:
    openers = words_of("phrase_openers")
    return any("_".join(words[place : place + length]) in openers for length in (1, 2, 3, 4))


def _until_mark(words: Sequence[str], place: int) -> Iterator[str]:
    """The words up to the next mark."""
    for word in words[place:]:
        if word in _MARKS or word in _STOPS or word in _BRACKETS:
            return
        yield word
