"""MC-TACO (Zhou et al., EMNLP 2019): which of several candidates answer a question about the order of events?

A raw row is one candidate; the rows with the same sentence and question form a question. PIPER's 234 test samples are
the questions of the category Event Ordering that have at least one correct candidate. There is no training file: the
publishers' development file (99 questions) is used instead; it shares no sentence with the test.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from d2e_sft.data.sample import Split
from data_builders.raw.reader import Draft, RawInput
from data_builders.raw.row import Row
from data_builders.raw.source import Job, Samples, SplitRows
from data_builders.sources.facts import source
from data_builders.sources.rows import (
    RawRow,
    Text,
    apply_filters,
    columns,
    keep_first,
    keep_if,
    read_models,
    to_samples,
)


class _Candidate(RawRow):
    sentence: Text
    question: Text
    answer: Text
    label: Literal["yes", "no"]
    category: Literal["Event Duration", "Frequency", "Typical Time", "Event Ordering", "Stationarity"]


FILTERS = (
    keep_if(
        "category Event Ordering",
        "the other categories ask for durations, frequencies and times, not for relations of events",
        lambda row: row.category == "Event Ordering",
        unit="candidates",
    ),
    keep_first(
        "repeated candidates",
        "a question offers each candidate once",
        lambda row: (row.sentence, row.question, row.answer),
        splits=("train", "test"),
        unit="candidates",
    ),
)
ANSWERED = keep_if(
    "at least one correct candidate",
    "a question without a correct candidate has no answer to train on or to score",
    lambda question: question.answers,
    unit="questions",
)


def read(job: Job) -> dict[Split, Samples]:
    """Read train and test."""
    splits: tuple[Split, ...] = ("train", "test")
    return {split: _read_split(job.input(split)) for split in splits if job.wants(split)}


def _read_split(raw: RawInput) -> Samples:
    candidates = apply_filters(SplitRows(read_models(_Candidate, raw, _cells(raw))), FILTERS, raw.split)
    groups: dict[tuple[str, str], list[_Candidate]] = {}
    for row in candidates.rows:
        groups.setdefault((row.sentence, row.question), []).append(row)
    questions = candidates.become([_draft(group) for group in groups.values()])
    return to_samples(raw, apply_filters(questions, [ANSWERED], raw.split))


def _cells(raw: RawInput) -> Iterator[Row]:
    """The rows by column; cells are not quoted. A row with too few cells lacks the fields of the last columns."""
    names = columns(_Candidate)
    for line in raw.lines():
        cells = line.text.split("\t")
        if len(cells) > len(names):
            raw.reject(line.number, line.text, f"got {len(cells)} columns; expected {len(names)}")
        else:
            yield Row(line.number, dict(zip(names, cells, strict=False)))


def _draft(question: list[_Candidate]) -> Draft:
    first = question[0]
    return Draft(
        number=first.number,
        relation="temporal",
        context=first.sentence,
        question=first.question,
        options=[candidate.answer for candidate in question],
        answers=[candidate.answer for candidate in question if candidate.label == "yes"],
        meta={"category": first.category},
    )


MCTACO = source(__file__, read=read)
