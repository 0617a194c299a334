"""CQA (Yang et al., 2022, "fine-grained causal reasoning"): causes and effects in passages of company reports.

A published question has a passage and the place of its answer. PIPER's rule for Cosmos QA and ESTER gives its
relation: one with the letters "if" is counterfactual ("What will happen if …?"), the others are causal. The format is
that of the authors' own programs, which write and read these files.

If a published file is missing, questions are derived from the same corpus' annotation of causes and effects. One
question of each pair asks for the cause (causal). Another asks what would not be if the cause were not
(counterfactual) or, if the effect is a piece of a clause, what the cause does (causal). Annotators marked spans of any
kind, so a question is worded by the kind of phrase that a span is (`text/phrases.py`, `text/causal_questions.py`).
Pairs with a span that is not a whole phrase, or without a well-formed question, are left out.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from pydantic import Field

from d2e_sft.data.sample import Split
from d2e_sft.util.errors import UserError
from data_builders.raw.characters import DECODED, decode_characters
from data_builders.raw.reader import RawInput
from data_builders.raw.row import BadRowError, Draft, clean
from data_builders.raw.source import Job, SplitSamples, source
from data_builders.sources.reading import (
    NEW_QUESTIONS,
    NO_BLANK,
    Filter,
    convert,
    join_answers,
    keep_if,
    keep_unseen,
    read_splits,
)
from data_builders.sources.rows import Form, IfOptions, IfRule, Place, RawObject, RawRow, Text, fingerprint, has_if
from data_builders.text.causal_questions import Link, ask_for_cause, ask_for_effect
from data_builders.text.phrases import Cases, Phrase, phrase_at

_CONVERTED = re.compile(r"\[Cause\](.*?)\[Relation\] (cause|enable|prevent) \[Effect\](.*)", re.DOTALL)


class CQAOptions(IfOptions):
    """Options of CQA; `rule` is only for published questions."""

    answer_in_context: bool = True


class _Published(RawRow):
    context: str  # the place counts the blanks around it
    question: Text
    answer: Place


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


def _published(rule: IfRule, row: _Published) -> Draft:
    start, end = row.answer
    if not start <= end <= len(row.context):
        raise BadRowError.at("answer", row.answer, f"a place in a passage of {len(row.context):,} characters")
    relation = "counterfactual" if has_if(row.question, rule) else "causal"
    return row.draft(relation=relation, context=clean(row.context) or None, answers=[clean(row.context[start:end])])


_Piece = tuple[str, int | None]  # a marked piece of a passage and its start, which may be unknown


@dataclass(frozen=True)
class _Pair:
    """The marked pieces of a cause and of an effect; `phrases` has the two sides, None for one that is not whole."""

    number: int
    place: str
    passage: str
    decoded: frozenset[str]
    type: Link
    sides: tuple[list[_Piece], list[_Piece]]
    phrases: tuple[Phrase | None, Phrase | None] = (None, None)


def _annotated_pairs(row: _Annotated) -> Iterator[_Pair]:
    for position, label in enumerate(row.labels):
        for place in (*label.reason, *label.result):
            if not place[0] <= place[1] <= len(row.info) + 1:  # a published span ends one behind its passage
                expected = f"a place in a passage of {len(row.info):,} characters"
                raise BadRowError.at(f"labelData.{position}", place, expected)
        sides = ([(row.info[start:end], start) for start, end in places] for places in (label.reason, label.result))
        yield _pair(row.number, f"{row.number}.{position}", row.info, label.type, *sides)


def _converted_pair(row: _Converted) -> Iterator[_Pair]:
    match = _CONVERTED.fullmatch(row.context)
    if not match:
        raise BadRowError.at("context", row.context, "'[Cause] … [Relation] cause|enable|prevent [Effect] …'")
    sides = ([(text, None) for text in match[side].split(" | ")] for side in (1, 3))
    yield _pair(row.number, str(row.number), row.original, cast(Link, match[2]), *sides)


def _pair(number: int, place: str, text: str, link: Link, *sides: Sequence[_Piece]) -> _Pair:
    passage, decoded = decode_characters(clean(text))
    cause, effect = (
        [(decode_characters(clean(piece))[0], start) for piece, start in pieces if clean(piece)] for pieces in sides
    )
    return _Pair(number, place, passage, decoded, link, (cause, effect))


def _find_phrases(pairs: Sequence[_Pair]) -> Iterator[_Pair]:
    """The pairs with their sides as phrases; the cause first, since the effect may be its predicate."""
    cases = Cases(dict.fromkeys(pair.passage for pair in pairs))
    for pair in pairs:
        cause = _phrase(pair.passage, pair.sides[0], cases)
        subject_end = cause.end if cause and cause.kind == "noun" else None
        yield replace(pair, phrases=(cause, _phrase(pair.passage, pair.sides[1], cases, subject_end)))


def _phrase(passage: str, side: list[_Piece], cases: Cases, subject_end: int | None = None) -> Phrase | None:
    """The phrase of a side; None if it has several pieces, or a text without a position that occurs twice or never."""
    if len(side) != 1:
        return None
    text, position = side[0]
    places = [match.start() for match in re.finditer(re.escape(text), passage)]
    if not places or (position is None and len(places) > 1):
        return None
    start = min(places, key=lambda place: abs(place - (position or 0)))
    return phrase_at(passage, start, start + len(text), cases, subject_end)


def _questions(pairs: Sequence[_Pair]) -> Iterator[Draft]:
    """A draft for each side, without a question if none is well-formed or if it contains its own answer."""
    for pair in pairs:
        cause, effect = cast(tuple[Phrase, Phrase], pair.phrases)
        for side, ask in (("cause", ask_for_cause), ("effect", ask_for_effect)):
            question = ask(cause, effect, pair.type)
            usable = question is not None and not _overlap(question.answer, question.text)
            yield Draft(
                number=pair.number,
                id=f"{pair.place}-{side}",
                relation=question.relation if question else None,
                context=pair.passage,
                question=question.text if question and usable else "",
                answers=[question.answer] if question else [],
                meta={"type": pair.type, "asked": side, DECODED: sorted(pair.decoded)},
            )


def _overlap(first: str, second: str) -> bool:
    one, other = fingerprint(first), fingerprint(second)
    return one in other or other in one


def _unseen(unit: str) -> Filter:
    return keep_unseen(
        "passages of the test",
        "the passage is also a test passage (ignoring letter case, blanks and punctuation)",
        lambda row: fingerprint(row.passage if isinstance(row, _Pair) else row.context),
        unit=unit,
    )


_PUBLISHED_FILTERS = (_unseen("rows"), NEW_QUESTIONS, NO_BLANK)
_DERIVED_FILTERS = (
    _unseen("pairs"),
    convert(_find_phrases),
    keep_if(
        "no blank side",
        "samples with a blank answer are excluded (PIPER), and a blank span gives no question",
        lambda pair: all(pair.sides),
        unit="pairs",
    ),
    keep_if(
        "sides of one piece",
        "a side that was marked in several pieces is not a whole phrase",
        lambda pair: all(len(side) == 1 for side in pair.sides),
        unit="pairs",
    ),
    keep_if(
        "two different sides",
        "a span that contains the other side would be asked for in its own words",
        lambda pair: not _overlap(*(side[0][0] for side in pair.sides)),
        unit="pairs",
    ),
    keep_if(
        "whole phrases",
        "a side that is cut, or whose kind is not sure, can be neither asked about nor an answer",
        lambda pair: all(pair.phrases),
        unit="pairs",
    ),
    convert(_questions),
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
_DERIVED: dict[Split, Form[Any]] = {
    "train": Form(_Converted, _converted_pair, lambda raw: raw.json_items("data")),
    "test": Form(_Annotated, _annotated_pairs, RawInput.json_items),
}


def read(job: Job) -> SplitSamples:
    """Read train and test, from the published questions or by derivation; derived questions allow no `rule`."""
    if "rule" in job.options.model_fields_set and all(job.file(split).substitute for split in job.files):
        names = ", ".join(job.file(split).name for split in job.files)
        raise UserError(f"cqa.rule={job.options.rule}: only for published questions; {names} is read", "leave it out")
    published = Form(_Published, partial(_published, job.options.rule), RawInput.json_items)
    forms: dict[Split, Form[Any]] = {}
    filters: list[Filter] = []
    for split in filter(job.files.__contains__, _DERIVED):
        derived = bool(job.file(split).substitute)
        forms[split] = _DERIVED[split] if derived else published
        chosen = _DERIVED_FILTERS if derived else _PUBLISHED_FILTERS
        filters += [replace(step, splits=(split,)) for step in chosen if split in step.splits]
    return read_splits(job, forms, filters)


CQA = source(__file__, read, options=CQAOptions)
