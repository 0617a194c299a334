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
from dataclasses import dataclass
from typing import Literal

from d2e_sft.data.sample import Split
from data_builders.raw.reader import Draft, RawInput
from data_builders.raw.row import BadRowError, Row, clean, one_of
from data_builders.raw.source import Input, Job, Samples, Source, SplitRows, github
from data_builders.sources.rows import first_of_each, not_in_test
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
    pairs.keep(
        "no blank side",
        "samples with a blank answer are excluded (PIPER), and no question can be made of a blank span",
        [pair for pair in pairs.rows if pair.cause and pair.effect],
        unit="pairs",
    )
    pairs.keep(
        "two different sides",
        "a span that is its own cause would be asked for in its own words",
        [pair for pair in pairs.rows if pair.cause != pair.effect],
        unit="pairs",
    )
    questions = pairs.become([_Question(pair, asked) for pair in pairs.rows for asked in WORDINGS])
    answers: dict[tuple[str, str], list[str]] = {}
    for question in questions.rows:
        answers.setdefault(question.key, []).append(question.answer)
    questions.keep(
        "one sample for each question",
        "pairs of one passage that share a side give the same question; the other sides are its accepted answers",
        first_of_each(questions.rows, lambda question: question.key),
        unit="questions",
    )
    drafts = [_draft(question, answers[question.key]) for question in questions.rows]
    return questions.become(raw.samples(drafts, raw.sample))


def _parse_annotation(row: Row) -> list[_Pair]:
    """The pairs of a passage of the event files, which mark spans by their positions."""
    row.text("info")
    passage: str = row.fields["info"]  # as it is: the positions count its blanks
    return [
        _Pair(
            row.number,
            f"{row.number}.{position}",
            clean(passage),
            label.choice("type", _TYPES),
            _spans(label, "reason", passage),
            _spans(label, "result", passage),
        )
        for position, label in enumerate(row.objects("labelData", "a list of objects with type, reason and result"))
    ]


def _spans(label: Row, name: str, passage: str) -> tuple[str, ...]:
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
        spans.append(clean(passage[pair[0] : pair[1]]))
    return tuple(filter(None, spans))


def _parse_converted(row: Row) -> _Pair:
    """A pair of the mirror's converted files, which write it as one text."""
    text = row.text("context")
    found = _CONVERTED.fullmatch(text)
    if not found:
        raise row.error("context", "'[Cause] … [Relation] … [Effect] …'", text)
    cause, effect = (tuple(filter(None, map(clean, found[side].split(" | ")))) for side in (1, 3))
    type_ = one_of("context", found[2], _TYPES)
    return _Pair(row.number, str(row.number), row.text("original"), type_, cause, effect)


def _draft(first: _Question, answers: list[str]) -> Draft:
    return Draft(
        number=first.pair.number,
        id=f"{first.pair.place}-{first.asked}",
        relation="causal" if first.asked == "cause" else "counterfactual",
        context=first.pair.passage,
        question=first.text,
        answers=dict.fromkeys(answers),
        meta={"type": first.pair.type},
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
        "labelling": "the question for the cause is causal, the question for the effect, 'What will happen if …', "
        "counterfactual, as PIPER has it",
        "count": "PIPER merges CQA with ESTER (1,617 causal and, by its two tables, 1,921 or 1,957 counterfactual). "
        "Derived questions come in equal numbers, two for each annotated pair, so they cannot meet that count",
    },
)
