"""Tell which pieces of a sentence can go, and which need each other, so that what is kept can be read.

An introduction and a subject without its verb need the clause that follows; a relative clause, an item of a series and
a further predicate need what they follow; the halves of a clause that a remark interrupts need each other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from data_builders.text.clauses import Piece
from data_builders.text.verbs import begins_with_verb
from data_builders.text.word_lists import words_of

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


def link_clauses(cut: Sequence[Piece], sentence: str) -> list[Piece]:
    """Return a sentence's pieces with `kind` and `needs`; a comma behind an introduction becomes part of it."""
    pieces = list(_without_wrappers(cut, sentence))
    _Linker(pieces).link()
    for number, (piece, following) in enumerate(pairwise(pieces)):
        leads_up = piece.needs and min(piece.needs) > number and number not in pieces[min(piece.needs)].needs
        if leads_up and following.marked and following.kind != "rest":
            following.start += len(following.words[0])
    return pieces


def _without_wrappers(pieces: Sequence[Piece], sentence: str) -> Iterator[Piece]:
    """The pieces, with "we believe that" apart from the clause behind it."""
    for number, piece in enumerate(pieces):
        end = pieces[number + 1].start if number + 1 < len(pieces) else len(sentence)
        start = piece.start + (1 if piece.marked else 0)
        text = sentence[start:end]
        blanks = len(text) - len(text.lstrip())
        wrapped = None if piece.joined else _WRAPPER.match(text.casefold(), blanks)
        if wrapped is None or len(piece.words) < 6:
            yield piece
            continue
        words = wrapped.group().split()
        yield Piece(piece.start, [*piece.words[: 1 if piece.marked else 0], *words], "wrapper")
        yield Piece(start + wrapped.end(), piece.words[len(words) + (1 if piece.marked else 0) :])


class _Linker:
    """Tells the kinds of a sentence's pieces and what they need, from the first to the last.

    Attributes:
        core: The clause that adjuncts behind it lean on.
        waiting: Pieces that lean on the next clause.
        unfinished: A piece without a verb so far, or whose last word asks for more.
    """

    def __init__(self, pieces: list[Piece]) -> None:
        self.pieces = pieces
        self.core: int | None = None
        self.waiting: list[int] = []
        self.unfinished: int | None = None

    def link(self) -> None:
        """Set `kind` and `needs` of all pieces."""
        for number, piece in enumerate(self.pieces):
            if piece.kind == "wrapper":
                piece.needs = {number + 1}
            elif piece.bracketed and number:
                piece.kind, piece.needs = "remark", {number - 1}
                self.unfinished = number - 1 if self.unfinished is None else self.unfinished
            elif self._resumes(number):
                self._resume(number)
            elif number and not piece.marked and piece.bare[:1] and piece.bare[0] in words_of("placing"):
                piece.kind, piece.needs = "phrase", {number - 1}
            elif piece.leans:
                self._lean(number)
            elif piece.verb is not None and not (begins_with_verb(piece.bare) and self.core is not None):
                self._settle(number)
                self.unfinished = number if piece.dangles else None
            else:
                self._continue(number)
        self._without_verb()

    def _resumes(self, number: int) -> bool:
        """Whether a piece is the rest of the unfinished one."""
        piece = self.pieces[number]
        if self.unfinished is None or piece.joined or piece.leans:
            return False
        after_bracket = self.pieces[number - 1].bracketed
        return begins_with_verb(piece.bare, finite=True) or self.pieces[self.unfinished].dangles or after_bracket

    def _resume(self, number: int) -> None:
        piece, begun = self.pieces[number], self.unfinished
        assert begun is not None
        piece.kind, piece.needs = "rest", {begun}
        self.pieces[begun].needs.add(number)
        if self.core is None and self.pieces[begun].kind not in ("adjunct", "remark"):
            self.waiting = [one for one in self.waiting if one != begun]
            self._settle(begun)
        self.unfinished = number if piece.dangles else None

    def _lean(self, number: int) -> None:
        piece = self.pieces[number]
        gerund = any(word.endswith("ing") and word != "during" for word in piece.bare[:2])
        clause = bool(piece.bare) and piece.bare[0] in words_of("clause_openers")
        piece.kind = "adjunct" if clause or gerund or piece.verb is not None else "remark"
        if clause and piece.verb is None and not gerund:
            self.unfinished = number  # "because the road, which was wet, was closed"
        later = any(not one.leans and one.verb is not None for one in self.pieces[number + 1 :])
        if (self.core is None or piece.joined) and later:
            self.waiting.append(number)
        elif number:
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
        for one in self.waiting:
            self.pieces[one].needs.add(number)
        self.waiting = []
        if (
            self.core is not None
            and piece.bare[:1]
            and piece.bare[0] in words_of("by_reference") - {"he", "she", "there"}
        ):
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
        parts = [one for one in self.waiting if self.pieces[one].kind in ("main", "item")]
        last = self.core if self.core is not None else parts[0] if parts else None
        for one in self.waiting:
            if self.core is None and one in parts:
                self.pieces[one].needs |= set(parts) - {one}
            elif last is not None:
                self.pieces[one].needs.add(last)
