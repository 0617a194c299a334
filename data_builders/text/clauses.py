"""Split sentences into spans that can be left out: clauses, phrases, items of a series, remarks in brackets.

There is no parser. A comma, a conjunction or a relative pronoun may begin a span. It does if its first words, and the
verbs before and after them, look like it; where that is unsure there is no cut.

Most spans need another one, so that what is kept can be read. An introduction and a subject without its verb need the
clause that follows. A relative clause, an item of a series and a further predicate need what they follow. The halves
of a clause that a remark interrupts need each other.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from typing import Literal

from data_builders.text.sentences import sentence_spans
from data_builders.text.words import begins_with_verb, predicate_place, words_of

Kind = Literal["main", "adjunct", "remark", "phrase", "item", "rest", "wrapper"]

_TOKEN = re.compile(r"\d[\d.,]*\d|\w[\w'’.-]*\w|\w|--+|[^\w\s]")
_YEAR = re.compile(r"(?:19|20)\d\d")
_LONGEST_TIME = 6  # words
_FARTHEST = 100  # words before or after a cut that it looks at: more are a table or a list, which takes time
_NO_NOUN = re.compile(r"(?:ing|ed|ly|able|ful|ive|ous|ant|(?<!m)ent)$|^(?:how|what|which|there|here)$")
_RAISING = words_of("allowing", "allowing_too", "nominatives")  # before "prices to rise"
_APART = re.compile(r"\s|,\s|[—;]|--")  # before a span: not "Ba(K,Na)2"
_JOINING = ("and", "but", "or", "so", "yet", "nor")
_MARKS = (",", "—", "–", "--", "---")
_STOPS = (".", "!", "?", ";", "…", ":")
_BRACKETS = {"(": ")", "[": "]"}
_BREAKS = frozenset([*_MARKS, *_STOPS, *_BRACKETS])
_ADJECTIVE = re.compile(
    r"\w{2,}(?:al|ic|ive|ous|ful|less|ble|ant|ent|ed|ing|y)$|large|small|big|good|new|old|long|low"
)
# "We believe that", behind which the clause begins.
_WRAPPER = re.compile(
    r"(?:(?:we|i) (?:\w+ly |also |still |now |do |continue to )?(?:believe|think|surmise|suspect)(?: that)?|"
    r"(?:we|i|they|he|she|analysts) (?:\w+ly |also |still )?(?:expect|estimate|anticipate|assume|forecast|project|"
    r"note|contend|argue|feel|felt|thought|said|say|are concerned) that|"
    r"(?:we|i)(?: are|'re|'m| am| continue to) (?:anticipat|expect|forecast|assum|believ|think)\w* that|"
    r"it(?: is|'s| seems)(?: not| almost)? (?:certain|clear|surprising|likely|evident) that|"
    r"we (?:\w+ly |also |still )?(?:expect|estimate|anticipate|assume|forecast|project)"
    r"(?= (?:(?!to |that )[\w'-]+ ){1,8}?(?:will|should|can|could|would|is|are) ))"
    r"(?= (?!to\b|in\b|of\b|about\b|the same\b|so\b)\w)"
)


@dataclass
class Span:
    """A part of a text.

    Attributes:
        start, end: Its place in the text, in characters.
        sentence: The number of its sentence in `sentence_spans`.
        kind: Main (a clause of its own), adjunct (a subordinate, relative or participle clause), remark (a phrase, or
            words in brackets), phrase (after a preposition, without a comma), item (of a series, or a further
            predicate), rest (of an interrupted clause), wrapper ("we believe that").
        needs: The numbers of the spans without which it cannot be read.
        words: Its words and marks, in lower case.
        bare: The same without a mark and a conjunction at the beginning.
        verb: The place of its finite verb in `bare`; None if it has none.
    """

    start: int
    end: int
    sentence: int
    kind: Kind = "main"
    needs: set[int] = field(default_factory=set)
    words: list[str] = field(default_factory=list)

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


def split_spans(text: str) -> list[Span]:
    """Return the spans of a text, in order; together they cover its sentences."""
    spans: list[Span] = []
    for number, (start, end) in enumerate(sentence_spans(text)):
        pieces = list(_without_wrappers(text, _cut(text, start, end, number)))
        _Linker(pieces).link()
        for place, (piece, following) in enumerate(pairwise(pieces)):
            leads_up = piece.needs and min(piece.needs) > place and place not in pieces[min(piece.needs)].needs
            if leads_up and following.marked and following.kind != "rest":
                following.start += len(following.words[0])  # a comma behind an introduction becomes part of it
            piece.end = following.start
        for piece in pieces:
            piece.needs = {len(spans) + place for place in piece.needs}
        spans += pieces
    return spans


def _cut(text: str, start: int, end: int, sentence: int) -> Iterator[Span]:
    """The pieces of a sentence, in order; the first begins where the sentence does."""
    tokens = list(_TOKEN.finditer(text, start, end))
    words = [token.group().casefold().replace("’", "'") for token in tokens]
    capital = [token.group()[0].isupper() for token in tokens]
    places = [place for place in _cuts(words, capital) if _APART.match(text, tokens[place - 1].end())]
    for first, last in pairwise([0, *places, len(words)]):
        stop = tokens[last].start() if last < len(words) else end
        yield Span(tokens[first].start() if first else start, stop, sentence, words=words[first:last])


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
    if not after or word in _BRACKETS:
        return bool(after)
    if before in _STOPS:
        ended = before in (";", "!", "?") or (before == "." and capital[place] and len(words[place - 2]) > 3)
        return ended and word not in _STOPS
    if word in _MARKS:
        names = word == "–" and capital[place - 1] and capital[place + 1]  # "Wanhua – BorsodChem" is one
        return after not in _STOPS and not names and not _inside_phrase(words, last, place)
    if before in (*_MARKS, *_JOINING) or before in words_of("determiners", "prepositions"):
        return False
    begun = words[last : min(place, last + _FARTHEST)]
    done = words[last] in words_of("placing") or predicate_place(list(begun)) is not None
    if word in _JOINING:
        rest = _until_mark(words, place + 1) or [""]
        subject = rest[0] in words_of("nominatives", "by_reference", "determiners") | {"there", "i"}
        shared = before in words_of("plain_forms") and begins_with_verb(rest)  # "meet or exceed standards"
        clause = (subject or capital[place + 1]) and predicate_place(rest) is not None
        joins = (begins_with_verb(rest) and not shared) or clause
        return done and joins and "both" not in begun
    alone = all(earlier in _MARKS or earlier in words_of("focus") for earlier in begun)
    behind = bool(last) and words[last] not in _JOINING and word not in ("that", "who", "which", "whose", "whom")
    return not alone and (((done or behind) and _opens(words, place)) or _places(words, last, place, begun))


def _places(words: Sequence[str], last: int, place: int, begun: Sequence[str]) -> bool:
    """Whether a phrase begins at a preposition behind a noun that the clause can end with: "sales | in Peru".

    `begun` is the clause so far, which began at `last`.
    """
    word, before = words[place], words[place - 1]
    adjective = _NO_NOUN.search(before) and before not in words_of("not_gerunds")
    if word not in words_of("placing") or not before.isalpha() or adjective:
        return False
    if before in words_of("auxiliaries", "modals", "adverbs", "dangling", "nominatives", "predicatives"):
        return False
    acting = words_of("auxiliaries", "modals", "adverbs", "nominatives") | {"to", "and", "or", "who", "which", "that"}
    if before in words_of("verb_forms") and words[place - 2] in acting:
        return False
    if word == "to" and (not begins_with_verb(list(words[place + 1 : place + 4])) or not _RAISING.isdisjoint(begun)):
        return False
    ends = words_of("clause_openers").union(_JOINING)
    phrase = takewhile(lambda following: following not in ends, _until_mark(words, place + 1))
    if not words_of("auxiliaries", "modals").isdisjoint(phrase):
        return False  # "people in Peru are"
    verb = predicate_place(list(begun))
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
    rest = _until_mark(words, place + 1)
    if word == "that":
        known = before in words_of("base_forms", "auxiliaries", "modals", "s_forms", "past_forms", "irregular_pasts")
        return begins_with_verb(rest) and not known and not before.endswith("ly")
    if word not in words_of("clause_openers") or before in words_of("before_as" if word == "as" else "focus"):
        return False
    takes_clause = before in words_of("base_forms", "everyday", "modals", "auxiliaries", "asking")  # "know when"
    if word in ("when", "where", "who", "which", "if", "whom", "whose") and takes_clause:
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
    for length, word in enumerate(_until_mark(words, place + 1)[:_LONGEST_TIME], start=1):
        if word in words_of("times") or _YEAR.fullmatch(word):
            after = place + length + 1
            ended = after >= len(words) or words[after] in _BREAKS.union(_JOINING)
            return ended or words[after] in words_of("clause_openers") or _opens_phrase(words, after)
    return False


def _opens_phrase(words: Sequence[str], place: int) -> bool:
    return any("_".join(words[place : place + length]) in words_of("phrase_openers") for length in (1, 2, 3, 4))


def _until_mark(words: Sequence[str], place: int) -> list[str]:
    return list(takewhile(lambda word: word not in _BREAKS, words[place : place + _FARTHEST]))


def _without_wrappers(text: str, pieces: Iterator[Span]) -> Iterator[Span]:
    """The pieces, with "we believe that" apart from the clause behind it."""
    for piece in pieces:
        marks = int(piece.marked)
        start = piece.start + marks
        content = text[start : piece.end]
        blanks = len(content) - len(content.lstrip())
        wrapped = None if piece.joined else _WRAPPER.match(content.casefold(), blanks)
        if wrapped is None or len(piece.words) < 6:
            yield piece
            continue
        count, end = marks + len(wrapped.group().split()), start + wrapped.end()
        yield Span(piece.start, end, piece.sentence, "wrapper", words=piece.words[:count])
        yield Span(end, piece.end, piece.sentence, words=piece.words[count:])


class _Linker:
    """Tells the kinds of a sentence's pieces and what they need, from the first to the last.

    `core` is the clause that adjuncts behind it lean on, `waiting` are pieces that lean on the next clause.
    `unfinished` is a piece without a verb so far, or whose last word asks for more.
    """

    def __init__(self, pieces: Sequence[Span]) -> None:
        self.pieces = pieces
        self.core: int | None = None
        clauses = (i for i in reversed(range(len(pieces))) if pieces[i].verb is not None and not self._leans(i))
        self.last_clause = next(clauses, 0)
        self.waiting: list[int] = []
        self.unfinished: int | None = None

    def link(self) -> None:
        """Set `kind` and `needs` of all pieces, numbered within the sentence."""
        for number, piece in enumerate(self.pieces):
            if piece.kind == "wrapper":
                piece.needs = {number + 1}
            elif piece.bracketed and number:
                piece.kind, piece.needs = "remark", {number - 1}
                self.unfinished = number - 1 if self.unfinished is None else self.unfinished
            elif self.unfinished is not None and self._resumes(number, self.unfinished):
                self._resume(number, self.unfinished)
            elif number and not piece.marked and piece.bare[:1] and piece.bare[0] in words_of("placing"):
                piece.kind, piece.needs = "phrase", {number - 1}
            elif self._leans(number):
                self._lean(number)
            elif piece.verb is not None and not (begins_with_verb(piece.bare) and self.core is not None):
                self._settle(number)
                self.unfinished = number if piece.dangles else None
            else:
                self._continue(number)
        self._without_verb()

    def _leans(self, number: int) -> bool:
        """Whether a piece's first words show that it is a clause or phrase that leans on another one."""
        piece = self.pieces[number]
        first, second, *_ = [*piece.bare, "", ""]
        if piece.bracketed or first in words_of("clause_openers") or _opens_phrase(piece.bare, 0):
            return True
        if first == "that":
            return number > 0 and not piece.joined
        noun = first in words_of("not_gerunds") and second not in words_of("continues_noun")
        gerund = first.endswith("ing") and first != "during" and not noun
        timed = len(piece.bare) <= _LONGEST_TIME and piece.bare[-1:] and piece.bare[-1] in words_of("times")
        if gerund and (piece.verb is None or piece.marked):
            return True
        if piece.verb is not None:
            is_subject = first in words_of("nominatives", "determiners")
            return piece.marked and not is_subject and first in words_of("remarks")
        participle = first.endswith("ed") and second in words_of("noun_cues")
        adverb = first.endswith("ly") and len(first) > 4
        phrase = participle or adverb or first in words_of("remarks", "noun_cues")
        return bool(timed) or " ".join(piece.bare) == "as such" or phrase

    def _resumes(self, number: int, begun: int) -> bool:
        """Whether a piece is the rest of the unfinished one."""
        piece = self.pieces[number]
        if piece.joined or self._leans(number):
            return False
        after_bracket = self.pieces[number - 1].bracketed
        return begins_with_verb(piece.bare, finite=True) or self.pieces[begun].dangles or after_bracket

    def _resume(self, number: int, begun: int) -> None:
        piece = self.pieces[number]
        piece.kind, piece.needs = "rest", {begun}
        self.pieces[begun].needs.add(number)
        if self.core is None and self.pieces[begun].kind not in ("adjunct", "remark"):
            self.waiting = [waiting for waiting in self.waiting if waiting != begun]
            self._settle(begun)
        self.unfinished = number if piece.dangles else None

    def _lean(self, number: int) -> None:
        piece = self.pieces[number]
        gerund = any(word.endswith("ing") and word != "during" for word in piece.bare[:2])
        clause = bool(piece.bare) and piece.bare[0] in words_of("clause_openers")
        piece.kind = "adjunct" if clause or gerund or piece.verb is not None else "remark"
        if clause and piece.verb is None and not gerund:
            self.unfinished = number  # "because the road, which was wet, was closed"
        later = number < self.last_clause
        if number and not (later and (self.core is None or piece.joined)):
            piece.needs = {self._described(number)}
        else:
            self.waiting.append(number)

    def _described(self, number: int) -> int:
        """The piece that one behind the clause leans on: a relative clause on what it follows, others on a clause."""
        piece = self.pieces[number]
        first = piece.bare[0] if piece.bare else ""
        if self.core is None or first in words_of("relatives"):
            return number - 1
        if piece.marked and first not in words_of("clause_openers"):
            return self.core
        while number > self.core + 1 and self.pieces[number - 1].kind in ("remark", "phrase"):
            number -= 1
        return number - 1

    def _settle(self, number: int) -> None:
        """Make a piece the clause that the waiting ones lean on."""
        piece = self.pieces[number]
        for waiting in self.waiting:
            self.pieces[waiting].needs.add(number)
        self.waiting = []
        refers = piece.bare[:1] and piece.bare[0] in words_of("by_reference") - {"he", "she", "there"}
        if self.core is not None and refers:
            piece.needs.add(self.core)
        self.core = number

    def _continue(self, number: int) -> None:
        """Link a piece without a verb, or with a further predicate."""
        piece = self.pieces[number]
        piece.kind = "item" if number else "main"
        if self.core is None:
            self.waiting.append(number)
            self.unfinished = number if self.unfinished is None else self.unfinished
        elif begins_with_verb(piece.bare):
            piece.needs, self.core = {self.core}, number
        else:
            piece.needs = {number - 1}

    def _without_verb(self) -> None:
        """Link what still waits; where no verb was found, all that may be part of the clause stays together."""
        parts = [number for number in self.waiting if self.pieces[number].kind in ("main", "item")]
        last = self.core if self.core is not None else parts[0] if parts else None
        together = {*parts} if self.core is None else set[int]()
        for before, after in pairwise(sorted(together)):  # so each needs all of them
            self.pieces[before].needs.add(after)
            self.pieces[after].needs.add(before)
        for number in self.waiting:
            if number not in together and last is not None:
                self.pieces[number].needs.add(last)
