"""Questions derived from CQA's annotation of causes and effects, where the published questions are missing.

One question of each pair asks for the cause (causal). Another asks what would not be if the cause were not
(counterfactual) or, if the effect is a piece of a clause, what the cause does (causal). Annotators marked spans of any
kind, so a question is worded by the kind of phrase that a span is (`text/phrases.py`, `text/causal_questions.py`).
Pairs with a span that is not a whole phrase, or without a well-formed question, are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from pydantic import Field

from d2e_sft.data.sample import Split
from data_builders.raw.characters import DECODED, decode_characters
from data_builders.raw.reader import RawInput
from data_builders.raw.row import BadRowError, Draft, clean
from data_builders.sources.filters import Filter, convert, join_answers, keep_if, keep_unseen
from data_builders.sources.rows import Form, Place, RawObject, RawRow, Text
from data_builders.text.causal_questions import Link, ask_for_cause, ask_for_effect
from data_builders.text.phrases import Cases, Phrase, phrase_at
from data_builders.text.texts import fingerprint

_CONVERTED = re.compile(r"\[Cause\](.*?)\[Relation\] (cause|enable|prevent) \[Effect\](.*)", re.DOTALL)


class _Label(RawObject):
    type: Link
    reason: list[Place]
    result: list[Place]


class _Annotated(RawRow):
    """A passage of the event files, which mark spans by their positions."""

    info: str  # the positions count the blanks around it
    labels: list[_Label] = Field(alias="labelData")


class _Converted(RawRow):
    """A pair of the mirror's converted files, which write it as one text."""

    original: Text
    context: Text


_Piece = tuple[str, int | None]  # a marked piece of a passage and its start, which may be unknown


@dataclass(frozen=True)
class _Pair:
    """The marked pieces of a cause and of an effect; `phrases` has the two sides, None for one that is not whole."""

    number: int
    place: str
    passage: str
    decoded: frozenset[str]
    type: Link
    cause: list[_Piece]
    effect: list[_Piece]
    phrases: tuple[Phrase | None, Phrase | None] = (None, None)


def _annotated_pairs(row: _Annotated) -> Iterator[_Pair]:
    for position, label in enumerate(row.labels):
        for place in (*label.reason, *label.result):
            if not place[0] <= place[1] <= len(row.info) + 1:  # a published span ends one behind its passage
                expected = f"a place in a passage of {len(row.info):,} characters"
                raise BadRowError.at(f"labelData.{position}", place, expected)
        cause, effect = ([(row.info[at:end], at) for at, end in places] for places in (label.reason, label.result))
        yield _pair(row.number, f"{row.number}.{position}", row.info, label.type, cause, effect)


def _converted_pair(row: _Converted) -> Iterator[_Pair]:
    found = _CONVERTED.fullmatch(row.context)
    if not found:
        raise BadRowError.at("context", row.context, "'[Cause] … [Relation] cause|enable|prevent [Effect] …'")
    cause, effect = ([(text, None) for text in found[side].split(" | ")] for side in (1, 3))
    yield _pair(row.number, str(row.number), row.original, cast(Link, found[2]), cause, effect)


def _pair(number: int, place: str, text: str, link: Link, cause: Iterable[_Piece], effect: Iterable[_Piece]) -> _Pair:
    """The pair with its passage and the pieces that are not blank decoded."""
    passage, decoded = decode_characters(clean(text))
    causes, effects = (
        [(decode_characters(clean(piece))[0], start) for piece, start in pieces if clean(piece)]
        for pieces in (cause, effect)
    )
    return _Pair(number, place, passage, decoded, link, causes, effects)


def _find_phrases(pairs: Sequence[_Pair]) -> list[_Pair]:
    """The pairs with their sides as phrases; the cause first, since the effect may be its predicate."""
    cases, found = Cases(dict.fromkeys(pair.passage for pair in pairs)), []
    for pair in pairs:
        cause = _phrase(pair.passage, pair.cause, cases)
        subject_end = cause.end if cause and cause.kind == "noun" else None
        found.append(replace(pair, phrases=(cause, _phrase(pair.passage, pair.effect, cases, subject_end))))
    return found


def _phrase(passage: str, side: list[_Piece], cases: Cases, subject_end: int | None = None) -> Phrase | None:
    """The phrase of a side; None if it has several pieces, or a text without a position that occurs twice or never."""
    if len(side) != 1:
        return None
    text, position = side[0]
    places, at = [], passage.find(text)
    while at >= 0:
        places.append(at)
        at = passage.find(text, at + len(text))
    if not places or (position is None and len(places) > 1):
        return None
    start = min(places, key=lambda place: abs(place - (position or 0)))
    return phrase_at(passage, start, start + len(text), cases, subject_end)


def _questions(pairs: Sequence[_Pair]) -> Iterator[Draft]:
    """A draft for each side, without a question if none is well-formed or if it contains its own answer."""
    for pair in pairs:
        cause, effect = cast(tuple[Phrase, Phrase], pair.phrases)
        for asked, ask in (("cause", ask_for_cause), ("effect", ask_for_effect)):
            question = ask(cause, effect, pair.type)
            usable = question is not None and not _overlap(question.answer, question.text)
            yield Draft(
                number=pair.number,
                id=f"{pair.place}-{asked}",
                relation=question.relation if question else None,
                context=pair.passage,
                question=question.text if question and usable else "",
                answers=[question.answer] if question else [],
                meta={"type": pair.type, "asked": asked, DECODED: sorted(pair.decoded)},
            )


def _overlap(first: str, second: str) -> bool:
    one, other = fingerprint(first), fingerprint(second)
    return one in other or other in one


def unseen_passages(unit: str) -> Filter:
    return keep_unseen(
        "passages of the test",
        "the passage is also a test passage (ignoring letter case, blanks and punctuation)",
        lambda row: fingerprint(row.passage if isinstance(row, _Pair) else row.context),
        unit=unit,
    )


DERIVED_FILTERS = (
    unseen_passages("pairs"),
    convert(_find_phrases),
    keep_if(
        "no blank side",
        "samples with a blank answer are excluded (PIPER), and a blank span gives no question",
        lambda pair: pair.cause and pair.effect,
        unit="pairs",
    ),
    keep_if(
        "sides of one piece",
        "a side that was marked in several pieces is not a whole phrase",
        lambda pair: len(pair.cause) == len(pair.effect) == 1,
        unit="pairs",
    ),
    keep_if(
        "two different sides",
        "a span that contains the other side would be asked for in its own words",
        lambda pair: not _overlap(pair.cause[0][0], pair.effect[0][0]),
        unit="pairs",
    ),
    keep_if(
        "whole phrases",
        "a side that is cut, or whose kind is not sure, can be neither asked about nor an answer",
        lambda pair: all(pair.phrases),
        unit="pairs",
    ),
    convert(lambda pairs: list(_questions(pairs))),
    keep_if(
        "well-formed questions",
        "no wording fits the two phrases, or the question would begin with an 'it' that refers to something else",
        lambda draft: draft.question,
        unit="questions",
    ),
    Filter(
        "one sample for each question",
        "pairs of one passage that share a side give the same question; the other sides are its accepted answers",
        lambda drafts, _: join_answers(drafts, lambda draft: (draft.context, draft.question)),
        unit="questions",
    ),
)

DERIVED: dict[Split, Form[Any]] = {
    "train": Form(_Converted, _converted_pair, lambda raw: raw.json_items("data")),
    "test": Form(_Annotated, _annotated_pairs, RawInput.json_items),
}
