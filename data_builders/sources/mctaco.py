"""MC-TACO (Zhou et al., EMNLP 2019): which of several candidates answer a question about the order of events?

A raw row is one candidate; a question is the rows that share sentence and question. PIPER's 234 test samples are
the questions of the category Event Ordering that have at least one correct candidate. There is no training file:
the publishers' development file serves as one, and shares no sentence with the test.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from d2e_sft.data.sample import Split
from data_builders.raw.reader import Draft, Line, RawInput
from data_builders.raw.row import BadRowError, Row, one_of, shown
from data_builders.raw.source import Input, Job, Samples, Source, SplitRows, github

_FILES = github("CogComp/MCTACO", "0ba9b790ad5a87ab3eef0f0cb7819408192f9729", "dataset")

TRAIN = _FILES.file("dev_3783.tsv", "8de54f6d3e0a6466e4ba2c5179c7f9ac3442eeba8683c46fd712f5f54751d6dd", 679_912)
TEST = _FILES.file("test_9442.tsv", "47e12f88559eb0735eeca2af2d0a3ed48efb3bb2742ff31de9fcfc9a76094354", 1_705_225)

CATEGORIES = ("Event Duration", "Frequency", "Typical Time", "Event Ordering", "Stationarity")
_COLUMNS = ("sentence", "question", "answer", "label", "category")


@dataclass(frozen=True)
class _Candidate:
    line: int
    sentence: str
    question: str
    answer: str
    correct: bool
    category: str


def read(job: Job) -> dict[Split, Samples]:
    """Build train (99 questions) and test (234 questions, PIPER table 7)."""
    splits: tuple[Split, ...] = ("train", "test")
    return {split: _read_split(job.input(split)) for split in splits if job.wants(split)}


def _read_split(raw: RawInput) -> Samples:
    candidates = SplitRows(raw.parse(raw.lines(), _parse))
    candidates.keep(
        "category Event Ordering",
        "the other categories ask for durations, frequencies and times, not for relations of events",
        [row for row in candidates.rows if row.category == "Event Ordering"],
        unit="candidates",
    )
    candidates.keep(
        "repeated candidates",
        "a question offers each candidate once",
        _without_repeats(raw, candidates.rows),
        unit="candidates",
    )
    groups: dict[tuple[str, str], list[_Candidate]] = {}
    for row in candidates.rows:
        groups.setdefault((row.sentence, row.question), []).append(row)
    questions = candidates.become([_draft(group) for group in groups.values()])
    questions.keep(
        "at least one correct candidate",
        "a question that no candidate answers has no answer to train on or to score",
        [question for question in questions.rows if question.answers],
        unit="questions",
    )
    return questions.become(raw.parse(questions.rows, raw.sample))


def _parse(line: Line) -> _Candidate:
    columns = line.text.split("\t")
    if len(columns) != len(_COLUMNS):
        raise BadRowError(f"got {len(columns)} tab-separated columns; expected {len(_COLUMNS)}: {', '.join(_COLUMNS)}")
    row = Row(line.number, dict(zip(_COLUMNS, columns, strict=True)))
    sentence, question, answer, label, category = (row.text(name) for name in _COLUMNS)
    one_of("label", label, ("yes", "no"))
    one_of("category", category, CATEGORIES)
    return _Candidate(line.number, sentence, question, answer, label == "yes", category)


def _without_repeats(raw: RawInput, rows: Sequence[_Candidate]) -> list[_Candidate]:
    """The first of equal candidates of a question; those whose labels contradict each other are all bad rows."""
    groups: dict[tuple[str, str, str], list[_Candidate]] = {}
    for row in rows:
        groups.setdefault((row.sentence, row.question, row.answer), []).append(row)
    kept = []
    for group in groups.values():
        if len({row.correct for row in group}) == 1:
            kept.append(group[0])
            continue
        labels = ", ".join(f"{'yes' if row.correct else 'no'!r} on line {row.line}" for row in group)
        for row in group:
            raw.reject(
                row.line,
                repr(row),
                f"label: got {labels} for the candidate {shown(row.answer)}; expected one label for a candidate of "
                "a question",
            )
    return kept


def _draft(question: Sequence[_Candidate]) -> Draft:
    first = question[0]
    return Draft(
        number=first.line,
        relation="temporal",
        context=first.sentence,
        question=first.question,
        options=[candidate.answer for candidate in question],
        answers=[candidate.answer for candidate in question if candidate.correct],
        meta={"category": first.category},
    )


MCTACO = Source(
    name="mctaco",
    format="mcq",
    licence="not stated by the publisher",
    homepage="https://github.com/CogComp/MCTACO",
    inputs=(Input("train", (TRAIN,), ("train",)), Input("test", (TEST,), ("test",))),
    read=read,
    redistribution="the publishers state no licence",
    notes={"train": "the published development file; it shares no sentence with the test"},
)
