"""CQA (Yang et al., 2022, "fine-grained causal reasoning"): causes and effects in passages of company reports.

The published questions are inside one archive of the authors, whose layout is not documented, so this source does
not read it. It derives questions from the same corpus' annotation of events, cause span, relation and effect span: of
each pair one that asks for the cause (causal), and one that asks what would not be if the cause were not
(counterfactual) or, where the effect is a piece of a clause, what the cause does (causal).

Annotators marked spans of any kind, so a question is worded by what kind of phrase a span is (`text/phrases.py`,
`text/causal_questions.py`). A pair of which no well-formed question can be made, or a span that is no whole phrase, is
left out, and counted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, cast

from d2e_sft.data.sample import Split
from data_builders.raw.characters import DECODED, decode_characters
from data_builders.raw.reader import Draft, RawInput
from data_builders.raw.row import BadRowError, Row, clean, one_of
from data_builders.raw.source import Input, Job, Samples, Source, SplitRows, github
from data_builders.sources.rows import first_of_each, not_in_test
from data_builders.text.causal_questions import CausalQuestion, Link, ask_for_cause, ask_for_effect
from data_builders.text.phrases import Cases, Phrase, phrase_at
from data_builders.text.texts import fingerprint

_FILES = github("oyarsa/event_extraction", "b6677601c433e986ab06a260c285f2df82faafb7", "data")
_DERIVED = "questions derived from the corpus' event annotation, not the published questions"

TRAIN = _FILES.file(
    "reconstruct_rl/train.json",
    "50aa4f879661d1a525b38cf9f17c4365e12093a01b9186e6bafbf23f7c55bd15",
    14_184_360,
    path="reconstruct_rl.tar.gz",
    member="reconstruct_rl/train.json",
    substitute=_DERIVED,
)
TEST = _FILES.file(
    "raw/event_dataset_test.json",
    "129ce0e4de7e4b49234682c837cb205b4fc2cc814956b7fd3f715226f1076080",
    721_590,
    substitute=_DERIVED,
)

_TYPES = ("cause", "enable", "prevent")
Asked = Literal["cause", "effect"]
_CONVERTED = re.compile(r"\[Cause\](.*?)\[Relation\] (\w+) \[Effect\](.*)", re.DOTALL)


@dataclass(frozen=True)
class _Span:
    """A marked piece of a passage; `start` is None where only its text is given."""

    text: str
    start: int | None = None


@dataclass(frozen=True)
class _Pair:
    number: int
    place: str
    passage: str
    decoded: frozenset[str]
    type: Link
    cause: tuple[_Span, ...]
    effect: tuple[_Span, ...]


@dataclass(frozen=True)
class _Phrases:
    """A pair whose sides were found in its passage; None where a side is no whole phrase."""

    pair: _Pair
    cause: Phrase | None
    effect: Phrase | None


@dataclass(frozen=True)
class _Question:
    pair: _Pair
    asked: Asked
    question: CausalQuestion | None

    @property
    def key(self) -> tuple[str, str]:
        return self.pair.passage, self.question.text if self.question else ""


def read(job: Job) -> dict[Split, Samples]:
    """Build train and test; both with derived questions."""
    raw = job.input("test")
    test = SplitRows([pair for pairs in raw.parse(raw.json_items(), _parse_annotation) for pair in pairs])
    test_pairs = test.rows
    result: dict[Split, Samples] = {"test": _finish(raw, test)}
    if job.wants("train"):
        raw = job.input("train")
        train = SplitRows(raw.parse(raw.json_items("data"), _parse_converted))
        train.keep(
            "passages of the test",
            "the passage is also a test passage (letter case, blanks and punctuation ignored)",
            not_in_test(train.rows, test_pairs, lambda pair: fingerprint(pair.passage)),
            unit="pairs",
        )
        result = {"train": _finish(raw, train), **result}
    return result


def _finish(raw: RawInput, pairs: SplitRows[_Pair]) -> Samples:
    cases = Cases(dict.fromkeys(pair.passage for pair in pairs.rows))
    pairs.keep(
        "no blank side",
        "samples with a blank answer are excluded (PIPER), and no question can be made of a blank span",
        [pair for pair in pairs.rows if pair.cause and pair.effect],
        unit="pairs",
    )
    pairs.keep(
        "sides of one piece",
        "a side that was marked in several pieces is no whole phrase",
        [pair for pair in pairs.rows if len(pair.cause) == len(pair.effect) == 1],
        unit="pairs",
    )
    pairs.keep(
        "two different sides",
        "a span that holds the other side would be asked for in its own words",
        [pair for pair in pairs.rows if not _overlap(pair.cause[0].text, pair.effect[0].text)],
        unit="pairs",
    )
    phrases = pairs.become([_phrases(pair, cases) for pair in pairs.rows])
    phrases.keep(
        "whole phrases",
        "a side that is cut, or of no kind that is sure, can neither be asked about nor be an answer",
        [pair for pair in phrases.rows if pair.cause and pair.effect],
        unit="pairs",
    )
    questions = phrases.become([question for pair in phrases.rows for question in _questions(pair)])
    questions.keep(
        "well-formed questions",
        "no wording fits the two phrases, or the question would begin with an 'it' that stands for what is not asked",
        [question for question in questions.rows if question.question],
        unit="questions",
    )
    return _one_of_each(raw, questions)


def _one_of_each(raw: RawInput, questions: SplitRows[_Question]) -> Samples:
    answers: dict[tuple[str, str], list[str]] = {}
    for question in questions.rows:
        assert question.question is not None
        answers.setdefault(question.key, []).append(question.question.answer)
    questions.keep(
        "one sample for each question",
        "pairs of one passage that share a side give the same question; the other sides are its accepted answers",
        first_of_each(questions.rows, lambda question: question.key),
        unit="questions",
    )
    drafts = [_draft(question, answers[question.key]) for question in questions.rows]
    return questions.become(raw.parse(drafts, raw.sample))


def _overlap(first: str, second: str) -> bool:
    one, other = fingerprint(first), fingerprint(second)
    return one in other or other in one


def _phrases(pair: _Pair, cases: Cases) -> _Phrases:
    """The two sides as phrases; the cause first, since the effect may be its predicate."""
    cause = _phrase(pair.passage, pair.cause[0], cases)
    subject_end = cause.end if cause and cause.kind == "noun" else None
    return _Phrases(pair, cause, _phrase(pair.passage, pair.effect[0], cases, subject_end))


def _phrase(passage: str, span: _Span, cases: Cases, subject_end: int | None = None) -> Phrase | None:
    """The span's phrase; None where its text is not in the passage, or more than once and nobody says where."""
    places, at = [], passage.find(span.text)
    while at >= 0:
        places.append(at)
        at = passage.find(span.text, at + max(1, len(span.text)))
    if not places or (span.start is None and len(places) > 1):
        return None
    hint = span.start or 0
    start = min(places, key=lambda place: abs(place - hint))
    return phrase_at(passage, start, start + len(span.text), cases, subject_end)


def _questions(pair: _Phrases) -> list[_Question]:
    """The question for each side; one whose answer stands in it is none."""
    assert pair.cause is not None
    assert pair.effect is not None
    made: dict[Asked, CausalQuestion | None] = {
        "cause": ask_for_cause(pair.cause, pair.effect, pair.pair.type),
        "effect": ask_for_effect(pair.cause, pair.effect, pair.pair.type),
    }
    return [
        _Question(pair.pair, asked, None if question and _overlap(question.answer, question.text) else question)
        for asked, question in made.items()
    ]


def _parse_annotation(row: Row) -> list[_Pair]:
    """The pairs of a passage of the event files, which mark spans by their positions."""
    row.text("info")
    passage: str = row.fields["info"]  # as it is: the positions count its blanks
    text, decoded = decode_characters(clean(passage))
    return [
        _Pair(
            row.number,
            f"{row.number}.{position}",
            text,
            decoded,
            cast(Link, label.choice("type", _TYPES)),
            _spans(label, "reason", passage),
            _spans(label, "result", passage),
        )
        for position, label in enumerate(row.objects("labelData", "a list of objects with type, reason and result"))
    ]


def _decoded(text: str) -> str:
    return decode_characters(text)[0]


def _spans(label: Row, name: str, passage: str) -> tuple[_Span, ...]:
    value = label.get(name)
    if not isinstance(value, list):
        raise label.error(name, "a list of [start, end]")
    spans = []
    for pair in value:
        if not isinstance(pair, list) or len(pair) != 2 or not all(type(at) is int for at in pair):
            raise BadRowError.at(f"{label.path}{name}", pair, "[start, end]")
        # One published span ends a character after its passage.
        if not 0 <= pair[0] <= pair[1] <= len(passage) + 1:
            raise label.error(name, f"positions in the passage of {len(passage)} characters", pair)
        if text := _decoded(clean(passage[pair[0] : pair[1]])):
            spans.append(_Span(text, pair[0]))
    return tuple(spans)


def _parse_converted(row: Row) -> _Pair:
    """A pair of the mirror's converted files, which write it as one text."""
    text = row.text("context")
    found = _CONVERTED.fullmatch(text)
    if not found:
        raise row.error("context", "'[Cause] … [Relation] … [Effect] …'", text)
    cause, effect = (
        tuple(_Span(_decoded(text)) for text in map(clean, found[side].split(" | ")) if text) for side in (1, 3)
    )
    type_ = cast(Link, one_of("context", found[2], _TYPES))
    passage, decoded = decode_characters(row.text("original"))
    return _Pair(row.number, str(row.number), passage, decoded, type_, cause, effect)


def _draft(first: _Question, answers: list[str]) -> Draft:
    question = first.question
    assert question is not None
    return Draft(
        number=first.pair.number,
        id=f"{first.pair.place}-{first.asked}",
        relation=question.relation,
        context=first.pair.passage,
        question=question.text,
        answers=dict.fromkeys(answers),
        meta={"type": first.pair.type, "asked": first.asked, DECODED: sorted(first.pair.decoded)},
    )


CQA = Source(
    name="cqa",
    format="qa",
    licence="CC-BY-NC-SA-4.0 (as the mirror attributes it; the authors' repository states none)",
    homepage="https://github.com/YangLinyi/Fine-grained-Causal-Reasoning",
    inputs=(Input("train", (TRAIN,), ("train",)), Input("test", (TEST,), ("train", "test"))),
    read=read,
    redistribution="the licence of the annotation is non-commercial and share-alike",
    notes={
        "official": "the published questions are in dataset.zip of the authors' repository "
        "(https://github.com/YangLinyi/Fine-grained-Causal-Reasoning/raw/main/dataset.zip), in a layout that is not "
        "documented; they are not read",
        "labelling": "by what is asked: for the cause, or for what the cause does, is causal; what would not be if "
        "the cause were not is counterfactual. PIPER's 'What will happen if …' is no counterfactual and is not asked",
        "count": "PIPER merges CQA with ESTER (1,617 causal and, by its two tables, 1,921 or 1,957 counterfactual). "
        "Questions are derived only where a pair's two spans are whole phrases for which a grammatical wording is "
        "known, so there are fewer; the manifest counts what is left out and why",
    },
)
