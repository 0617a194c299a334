"""Split sentences into spans that can be left out: clauses, phrases, items of a series, remarks in brackets.

A sentence is split at punctuation, conjunctions and relative pronouns (`clauses.py`).
Most spans lean on another one: a relative clause on what it describes, the second half of an interrupted clause on the
first. `needs` has these links, so that what is kept can be read: a span is kept with everything that it needs.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from data_builders.text.clause_links import link_clauses
from data_builders.text.clauses import cut_clauses
from data_builders.text.sentences import sentence_spans

_OPENING = re.compile(r"[\s,;:—–-]+|(?:and|but|or|so|yet|nor|that)\b\s*|[”’)\]]\s*", re.IGNORECASE)
_CLOSING = re.compile(r"[\s,;:—–-]+$")
_END = re.compile(r"""\s*[.!?…]+(?:\s*["'”’)\]]+)*$""")
_MARKS = (",", ";", ":", ".", "!", "?", ")")
_COMMA = re.compile(r"^\s*,")


@dataclass(frozen=True)
class Span:
    """A part of a text.

    Attributes:
        start, end: Its place in the text, in characters.
        sentence: The number of its sentence in `sentence_spans`.
        kind: main (a clause of its own), adjunct (a subordinate, relative or participle clause), remark (a phrase, or
            words in brackets), phrase (after a preposition, without a comma), item (of a series, or a further
            predicate), rest (of an interrupted clause), wrapper ("we believe that").
        needs: The numbers of the spans without which it cannot be read.
    """

    start: int
    end: int
    sentence: int
    kind: str
    needs: tuple[int, ...] = ()


def split_spans(text: str) -> list[Span]:
    """Return the spans of a text, in order; together they cover its sentences."""
    spans: list[Span] = []
    for number, (start, end) in enumerate(sentence_spans(text)):
        first = len(spans)
        pieces = link_clauses(cut_clauses(text[start:end]), text[start:end])
        ends = [piece.start for piece in pieces[1:]] + [end - start]
        for piece, piece_end in zip(pieces, ends, strict=True):
            needs = tuple(first + place for place in piece.needs)
            spans.append(Span(start + piece.start, start + piece_end, number, piece.kind, needs))
    return spans


def with_needed(spans: Sequence[Span], kept: Collection[int]) -> set[int]:
    """Return the spans to keep, by number, with all that they need."""
    found, waiting = set[int](), list(kept)
    while waiting:
        number = waiting.pop()
        if number not in found:
            found.add(number)
            waiting += spans[number].needs
    return found


def keep_spans(text: str, kept: Collection[int], spans: Sequence[Span] | None = None) -> str:
    """Return what remains of a text if only some of its spans stay, with what these need (`with_needed`).

    Its words are a subsequence of the text's. A sentence that lost its start begins with a capital, one that lost its
    end has the full stop of the original; line breaks between sentences stay. All spans give the text itself.
    """
    spans = split_spans(text) if spans is None else spans
    numbers = with_needed(spans, kept)
    if len(numbers) == len(spans):
        return text
    parts: list[str] = []
    before = 0  # the end of the sentence kept last
    for _, group in groupby(range(len(spans)), key=lambda number: spans[number].sentence):
        sentence = list(group)
        remaining = _sentence(text, spans, sentence, numbers)
        start = spans[sentence[0]].start
        if remaining:
            joint = ("\n" if "\n" in text[before:start] else " ") if parts else ""
            parts += [joint, remaining]
            before = spans[sentence[-1]].end
    return "".join(parts)


def _sentence(text: str, spans: Sequence[Span], sentence: Sequence[int], kept: Collection[int]) -> str:
    """What remains of one sentence."""
    whole = text[spans[sentence[0]].start : spans[sentence[-1]].end]
    staying = [number for number in sentence if number in kept]
    if len(staying) == len(sentence) or not staying:
        return whole if staying else ""
    remaining = "".join(_texts(text, spans, sentence, kept))
    if staying[0] != sentence[0]:
        while (opening := _OPENING.match(remaining)) and opening.end() < len(remaining):
            remaining = remaining[opening.end() :]
        if whole[:1].isupper() or not whole[:1].isalpha():
            remaining = remaining[:1].upper() + remaining[1:]
    if staying[-1] != sentence[-1]:
        end = _END.search(whole)
        remaining = _CLOSING.sub("", remaining) + (end.group() if end else "")
    return remaining.strip()


def _texts(text: str, spans: Sequence[Span], sentence: Sequence[int], kept: Collection[int]) -> Iterator[str]:
    """The texts of the spans that stay, with one blank where others stood between them, and none before a comma."""
    for place, number in enumerate(sentence):
        if number not in kept:
            continue
        part = text[spans[number].start : spans[number].end]
        following = next((one for one in sentence[place + 1 :] if one in kept), None)
        if following is not None and following != sentence[place + 1]:
            after = text[spans[following].start : spans[following].end].lstrip()
            part = part.rstrip() + ("" if after[:1] in _MARKS and spans[following].kind != "rest" else " ")
        if number > sentence[0] and number - 1 not in kept:
            part = _COMMA.sub("", part).lstrip() if spans[number].kind == "rest" else part.lstrip()
        yield part
