"""CQA (Yang et al., 2022, "fine-grained causal reasoning"): causes and effects in passages of company reports.

The published questions are inside one archive of the authors, whose layout is not documented, so this source does
not read it. It derives questions from the same corpus' annotation of events, cause span, relation and effect span,
with fixed wordings: one question for the cause (causal) and one for the effect (counterfactual in PIPER's sense,
which counts "What will happen if …" as such). Spans are put into the wording as they stand, so a question may be
ungrammatical, as published ones are too.

A side of a pair may have several spans; all of them are needed, so they are joined by "; " in an answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from d2e_sft.data.sample import EventSample, Split
from data_builders.raw.bad_rows import MISSING, BadRowError
from data_builders.raw.fields import choice_field, clean, text_field
from data_builders.raw.reader import RawInput
from data_builders.raw.source import Input, Job, RawFile, Source, SplitRows
from data_builders.sources.rows import first_of_each, not_in_test
from data_builders.text.texts import fingerprint

_COMMIT = "b6677601c433e986ab06a260c285f2df82faafb7"
_URL = f"https://raw.githubusercontent.com/oyarsa/event_extraction/{_COMMIT}/data"
_LICENCE = "CC-BY-NC-SA-4.0"
_DERIVED = "questions derived from the corpus' event annotation, not the published questions"

TRAIN = RawFile(
    name="reconstruct_rl/train.json",
    url=f"{_URL}/reconstruct_rl.tar.gz",
    commit=_COMMIT,
    sha256="50aa4f879661d1a525b38cf9f17c4365e12093a01b9186e6bafbf23f7c55bd15",
    bytes=14_184_360,
    member="reconstruct_rl/train.json",
    substitute=_DERIVED,
)
TEST = RawFile(
    name="raw/event_dataset_test.json",
    url=f"{_URL}/raw/event_dataset_test.json",
    commit=_COMMIT,
    sha256="129ce0e4de7e4b49234682c837cb205b4fc2cc814956b7fd3f715226f1076080",
    bytes=721_590,
    substitute=_DERIVED,
)

Asked = Literal["cause", "effect"]
# What is asked for, relation → wording. A cause that prevents does not bring its "effect" about.
WORDINGS: dict[Asked, dict[str, str]] = {
    "cause": {
        "cause": "What causes {given}?",
        "enable": "What enables {given}?",
        "prevent": "What prevents {given}?",
    },
    "effect": {
        "cause": "What will happen if {given}?",
        "enable": "What will happen if {given}?",
        "prevent": "What will be prevented if {given}?",
    },
}
_TYPES = ("cause", "enable", "prevent")
_CONVERTED = re.compile(r"\[Cause\](.*?)\[Relation\] (\w+) \[Effect\](.*)", re.DOTALL)


@dataclass(frozen=True)
class _Pair:
    number: int
    place: str
    passage: str
    type: str
    cause: tuple[str, ...]
    effect: tuple[str, ...]


@dataclass(frozen=True)
class _Question:
    pair: _Pair
    asked: Asked

    @property
    def text(self) -> str:
        given = self.pair.effect if self.asked == "cause" else self.pair.cause
        return WORDINGS[self.asked][self.pair.type].format(given=" and ".join(span.rstrip(" .,;:") for span in given))

    @property
    def key(self) -> tuple[str, str]:
        return self.pair.passage, self.text

    @property
    def answer(self) -> str:
        return "; ".join(self.pair.cause if self.asked == "cause" else self.pair.effect)


def read(job: Job) -> dict[Split, SplitRows]:
    """Build train and test; both with derived questions."""
    test_raw = job.input("test", "test")
    test_pairs = _flat(test_raw.parse(test_raw.json_items(), _parse_annotation))
    test = SplitRows([], rows_read=len(test_pairs))
    _finish(test_raw, test, test_pairs)
    if not job.wants("train"):
        return {"test": test}

    train_raw = job.input("train", "train")
    train_pairs = train_raw.parse(train_raw.json_items("data"), _parse_converted)
    train = SplitRows([], rows_read=len(train_pairs))
    clean = train.filters.record(
        "passages of the test",
        "the passage is also a test passage (letter case, blanks and punctuation ignored)",
        train_pairs,
        not_in_test(train_pairs, test_pairs, lambda pair: fingerprint(pair.passage)),
        unit="pairs",
    )
    _finish(train_raw, train, clean)
    return {"train": train, "test": test}


def _flat(pairs: Iterable[list[_Pair]]) -> list[_Pair]:
    return [pair for group in pairs for pair in group]


def _finish(raw: RawInput, result: SplitRows, pairs: list[_Pair]) -> None:
    log = result.filters
    full = log.record(
        "no blank side",
        "samples with a blank answer are excluded (PIPER), and no question can be made of a blank span",
        pairs,
        [pair for pair in pairs if pair.cause and pair.effect],
        unit="pairs",
    )
    proper = log.record(
        "two different sides",
        "a span that is its own cause would be asked for in its own words",
        full,
        [pair for pair in full if pair.cause != pair.effect],
        unit="pairs",
    )
    questions = [_Question(pair, asked) for pair in proper for asked in WORDINGS]
    answers: dict[tuple[str, str], list[str]] = {}
    for question in questions:
        answers.setdefault(question.key, []).append(question.answer)
    asked_once = log.record(
        "one sample for each question",
        "pairs of one passage that share a side give the same question; the other sides are its accepted answers",
        questions,
        first_of_each(questions, lambda question: question.key),
        unit="questions",
    )
    result.samples = raw.samples(
        asked_once,
        lambda question: _sample(raw, question, answers[question.key]),
        lambda question: question.pair.number,
    )


def _parse_annotation(number: int, row: dict[str, Any]) -> list[_Pair]:
    """The pairs of a passage of the event files, which mark spans by their positions."""
    text_field(row, "info")
    passage: str = row["info"]  # as it is: the positions count its blanks
    labels = row.get("labelData", MISSING)
    if not isinstance(labels, list) or not all(isinstance(label, dict) for label in labels):
        raise BadRowError.at("labelData", labels, "a list of objects with type, reason and result")
    return [
        _Pair(
            number,
            f"{number}.{position}",
            clean(passage),
            choice_field(f"labelData.{position}.type", label.get("type", MISSING), _TYPES),
            _spans(f"labelData.{position}.reason", label.get("reason", MISSING), passage),
            _spans(f"labelData.{position}.result", label.get("result", MISSING), passage),
        )
        for position, label in enumerate(labels)
    ]


def _spans(name: str, value: Any, passage: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise BadRowError.at(name, value, "a list of [start, end]")
    spans = []
    for pair in value:
        if not isinstance(pair, list) or len(pair) != 2 or not all(type(at) is int for at in pair):
            raise BadRowError.at(name, pair, "[start, end]")
        # One published span ends a character after its passage.
        if not 0 <= pair[0] <= pair[1] <= len(passage) + 1:
            raise BadRowError.at(name, pair, f"positions in the passage of {len(passage)} characters")
        spans.append(clean(passage[pair[0] : pair[1]]))
    return tuple(filter(None, spans))


def _parse_converted(number: int, row: dict[str, Any]) -> _Pair:
    """A pair of the mirror's converted files, which write it as one text."""
    text = text_field(row, "context")
    found = _CONVERTED.fullmatch(text)
    if not found:
        raise BadRowError.at("context", text, "'[Cause] … [Relation] … [Effect] …'")
    cause, effect = (tuple(filter(None, map(clean, found[side].split(" | ")))) for side in (1, 3))
    type_ = choice_field("context", found[2], _TYPES)
    return _Pair(number, str(number), text_field(row, "original"), type_, cause, effect)


def _sample(raw: RawInput, first: _Question, answers: list[str]) -> EventSample:
    return EventSample(
        id=f"cqa-{raw.split}-{first.pair.place}-{first.asked}",
        dataset="cqa",
        split=raw.split,
        relation="causal" if first.asked == "cause" else "counterfactual",
        format="qa",
        context=first.pair.passage,
        question=first.text,
        answers=list(dict.fromkeys(answers)),
        meta={"source": raw.name, "item": first.pair.number, "type": first.pair.type, "licence": _LICENCE},
    )


CQA = Source(
    name="cqa",
    format="qa",
    licence=f"{_LICENCE} (as the mirror attributes it; the authors' repository states none)",
    homepage="https://github.com/YangLinyi/Fine-grained-Causal-Reasoning",
    inputs=(Input("train", (TRAIN,), ("train",)), Input("test", (TEST,), ("train", "test"))),
    read=read,
    redistribution="the licence of the annotation is non-commercial and share-alike",
    notes={
        "official": "the published questions are in dataset.zip of the authors' repository "
        "(https://github.com/YangLinyi/Fine-grained-Causal-Reasoning/raw/main/dataset.zip), in a layout that is not "
        "documented; they are not read",
        "labelling": "the question for the cause is causal, the question for the effect, 'What will happen if …', "
        "counterfactual, as PIPER has it",
        "count": "PIPER merges CQA with ESTER (1,617 causal and, by its two tables, 1,921 or 1,957 counterfactual). "
        "Derived questions come in equal numbers, two for each annotated pair, so they cannot meet that count",
    },
)
