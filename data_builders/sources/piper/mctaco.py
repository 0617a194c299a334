"""MC-TACO (Zhou et al., EMNLP 2019): which of several candidates answer a question about the order of events?

A raw row is one candidate; the rows with the same sentence and question form a question. PIPER's 234 test samples are
the questions of the category Event Ordering that have at least one correct candidate. There is no training file: the
publishers' development file (99 questions) is used instead; it shares no sentence with the test.
"""

from collections.abc import Iterator, Sequence
from typing import Literal

from data_builders.raw.source import source
from data_builders.sources.reading import convert, keep_first, keep_if, reader
from data_builders.sources.rows import Draft, Form, RawInput, RawRow, Row, Text, columns


class _Candidate(RawRow):
    sentence: Text
    question: Text
    answer: Text
    label: Literal["yes", "no"]
    category: Literal["Event Duration", "Frequency", "Typical Time", "Event Ordering", "Stationarity"]


def _cells(raw: RawInput) -> Iterator[Row]:
    """The rows by column; cells are not quoted. A row with too few cells lacks the fields of the last columns."""
    names = columns(_Candidate)
    for line in raw.lines():
        cells = line.text.split("\t")
        if len(cells) > len(names):
            raw.reject(line.number, line.text, f"got {len(cells)} columns; expected {len(names)}")
        else:
            yield Row(line.number, dict(zip(names, cells, strict=False)))


def _drafts(candidates: Sequence[_Candidate]) -> list[Draft]:
    questions: dict[tuple[str, str], list[_Candidate]] = {}
    for row in candidates:
        questions.setdefault((row.sentence, row.question), []).append(row)
    return [
        rows[0].draft(
            relation="temporal",
            context=rows[0].sentence,
            options=[row.answer for row in rows],
            answers=[row.answer for row in rows if row.label == "yes"],
            meta={"category": rows[0].category},
        )
        for rows in questions.values()
    ]


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
    convert(_drafts),
    keep_if(
        "at least one correct candidate",
        "a question without a correct candidate has no answer to train on or to score",
        lambda question: question.answers,
        unit="questions",
    ),
)

MCTACO = source(__file__, reader(Form(_Candidate, rows=_cells), FILTERS))
