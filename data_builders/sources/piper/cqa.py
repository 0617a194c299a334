"""CQA (Yang et al., 2022, "fine-grained causal reasoning"): causes and effects in passages of company reports.

The published questions are inside an archive whose layout is not documented, so this source does not read it. It
derives questions from the same corpus' annotation of cause span, relation and effect span. One question of each pair
asks for the cause (causal). Another asks what would not be if the cause were not (counterfactual) or, if the effect is
a piece of a clause, what the cause does (causal).

Annotators marked spans of any kind, so a question is worded by the kind of phrase that a span is (`text/phrases.py`,
`text/causal_questions.py`). A pair without a well-formed question, or with a span that is not a whole phrase, is left
out and counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal, cast

from pydantic import AfterValidator, Field, NonNegativeInt

from d2e_sft.data.sample import Split
from data_builders.raw.characters import DECODED, decode_characters
from data_builders.raw.reader import Draft, RawInput
from data_builders.raw.row import BadRowError, Row, clean
from data_builders.raw.source import Job, Samples, SplitRows
from data_builders.sources.facts import source
from data_builders.sources.rows import (
    RawObject,
    RawRow,
    Text,
    apply_filters,
    first_of_each,
    keep_if,
    keep_unseen,
    parse_row,
    read_models,
    to_samples,
)
from data_builders.text.causal_questions import CausalQuestion, Link, ask_for_cause, ask_for_effect
from data_builders.text.phrases import Cases, Phrase, phrase_at
from data_builders.text.texts import fingerprint

_CONVERTED = re.compile(r"\[Cause\](.*?)\[Relation\] (cause|enable|prevent) \[Effect\](.*)", re.DOTALL)
_Place = Annotated[list[NonNegativeInt], Field(min_length=2, max_length=2)]  # start, end


class _Label(RawObject):
    type: Link
    reason: list[_Place]
    result: list[_Place]


class _Annotated(RawRow):
    """A passage of the event files, which mark spans by their positions."""

    info: str  # the positions count the blanks around it
    labels: list[_Label] = Field(alias="labelData")


def _check_converted(text: str) -> str:
    if not _CONVERTED.fullmatch(text):
        raise ValueError("expected '[Cause] … [Relation] cause|enable|prevent [Effect] …'")
    return text


class _Converted(RawRow):
    """A pair of the mirror's converted files, which write it as one text."""

    original: Text
    context: Annotated[Text, AfterValidator(_check_converted)]


@dataclass(frozen=True)
class _Span:
    """A marked piece of a passage; `start` may be missing."""

    text: str
    start: int | None = None


@dataclass(frozen=True)
class _Pair:
    number: int
    place: str
    passage: str
    decoded: frozenset[str]
    type: Link
    cause: list[_Span]
    effect: list[_Span]


def _annotated_pairs(raw_row: Row) -> Iterator[_Pair]:
    row = parse_row(_Annotated, raw_row)
    length = len(row.info)
    passage, decoded = decode_characters(clean(row.info))
    for position, label in enumerate(row.labels):
        for place in (*label.reason, *label.result):
            if not place[0] <= place[1] <= length + 1:  # a published span ends one behind its passage
                raise BadRowError.at(f"labelData.{position}", place, f"a place in a passage of {length:,} characters")
        cause, effect = (
            _spans((row.info[start:end], start) for start, end in places) for places in (label.reason, label.result)
        )
        yield _Pair(row.number, f"{row.number}.{position}", passage, decoded, label.type, cause, effect)


def _converted_pair(row: _Converted) -> _Pair:
    found = _CONVERTED.fullmatch(row.context)
    assert found
    cause, effect = (_spans((text, None) for text in found[side].split(" | ")) for side in (1, 3))
    passage, decoded = decode_characters(row.original)
    return _Pair(row.number, str(row.number), passage, decoded, cast(Link, found[2]), cause, effect)


def _spans(marked: Iterator[tuple[str, int | None]]) -> list[_Span]:
    """The spans that are not blank, decoded like the passage."""
    return [_Span(decode_characters(text)[0], start) for text, start in ((clean(t), s) for t, s in marked) if text]


UNSEEN = keep_unseen(
    "passages of the test",
    "the passage is also a test passage (ignoring letter case, blanks and punctuation)",
    lambda pair: fingerprint(pair.passage),
    unit="pairs",
)
PAIR_FILTERS = (
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
        lambda pair: not _overlap(pair.cause[0].text, pair.effect[0].text),
        unit="pairs",
    ),
)
WHOLE_PHRASES = keep_if(
    "whole phrases",
    "a side that is cut, or whose kind is not sure, can be neither asked about nor an answer",
    lambda phrases: phrases.cause and phrases.effect,
    unit="pairs",
)
WELL_FORMED = keep_if(
    "well-formed questions",
    "no wording fits the two phrases, or the question would begin with an 'it' that refers to something else",
    lambda draft: draft.question,
    unit="questions",
)


def read(job: Job) -> dict[Split, Samples]:
    """Read train and test; both with derived questions."""
    raw = job.input("test")
    test = [pair for pairs in raw.parse(raw.json_items(), lambda row: list(_annotated_pairs(row))) for pair in pairs]
    result: dict[Split, Samples] = {"test": _to_samples(raw, test)}
    if job.wants("train"):
        raw = job.input("train")
        train = [_converted_pair(row) for row in read_models(_Converted, raw, raw.json_items("data"))]
        result = {"train": _to_samples(raw, train, test), **result}
    return result


def _to_samples(raw: RawInput, pairs: Sequence[_Pair], test: Sequence[_Pair] = ()) -> Samples:
    rows = apply_filters(SplitRows(pairs), [UNSEEN], raw.split, test)
    cases = Cases(dict.fromkeys(pair.passage for pair in rows.rows))
    rows = apply_filters(rows, PAIR_FILTERS, raw.split)
    phrases = apply_filters(rows.become([_phrases(pair, cases) for pair in rows.rows]), [WHOLE_PHRASES], raw.split)
    questions = phrases.become([draft for found in phrases.rows for draft in _questions(found)])
    questions = apply_filters(questions, [WELL_FORMED], raw.split)
    answers: dict[tuple[str | None, str], list[str]] = {}
    for draft in questions.rows:
        answers.setdefault((draft.context, draft.question), []).extend(draft.answers)
    questions.keep(
        "one sample for each question",
        "pairs of one passage that share a side give the same question; the other sides are its accepted answers",
        first_of_each(questions.rows, lambda draft: (draft.context, draft.question)),
        unit="questions",
    )
    joined = [
        replace(draft, answers=dict.fromkeys(answers[draft.context, draft.question])) for draft in questions.rows
    ]
    return to_samples(raw, questions.become(joined))


def _overlap(first: str, second: str) -> bool:
    one, other = fingerprint(first), fingerprint(second)
    return one in other or other in one


@dataclass(frozen=True)
class _Phrases:
    """A pair whose sides were found in its passage; None if a side is not a whole phrase."""

    pair: _Pair
    cause: Phrase | None
    effect: Phrase | None


def _phrases(pair: _Pair, cases: Cases) -> _Phrases:
    """The two sides as phrases; the cause first, since the effect may be its predicate."""
    cause = _phrase(pair.passage, pair.cause[0], cases)
    subject_end = cause.end if cause and cause.kind == "noun" else None
    return _Phrases(pair, cause, _phrase(pair.passage, pair.effect[0], cases, subject_end))


def _phrase(passage: str, span: _Span, cases: Cases, subject_end: int | None = None) -> Phrase | None:
    """The span's phrase; None if its text is not in the passage, or is there more than once without a position."""
    places = [found.start() for found in re.finditer(re.escape(span.text), passage)]
    if not places or (span.start is None and len(places) > 1):
        return None
    hint = span.start or 0
    start = min(places, key=lambda place: abs(place - hint))
    return phrase_at(passage, start, start + len(span.text), cases, subject_end)


def _questions(found: _Phrases) -> Iterator[Draft]:
    """A draft for each side, without a question if none is well-formed or if it contains its own answer."""
    pair, cause, effect = found.pair, found.cause, found.effect
    assert cause
    assert effect
    made: dict[Literal["cause", "effect"], CausalQuestion | None] = {
        "cause": ask_for_cause(cause, effect, pair.type),
        "effect": ask_for_effect(cause, effect, pair.type),
    }
    for asked, question in made.items():
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


CQA = source(__file__, read=read)
