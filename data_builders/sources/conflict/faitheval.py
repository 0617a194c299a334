"""FaithEval (Ming et al., ICLR 2025): passages for a wrong option, without the answer, or with several answers.

Counterfactual: the questions are those of ARC-Challenge. A generated passage argues for an option that is wrong in the
world and right by the passage. So all 1,000 rows are a `conflict`, and the habit is the answer of ARC.

Unanswerable and inconsistent: questions of ten datasets on a passage that was changed to lack the answer, or on
passages that contradict each other. Both are `unanswerable` rows. As in the authors' program, the question says which
word is expected then (in our words), and the phrases that the program accepts are the accepted answers.
"""

import string
from functools import partial
from pathlib import Path

from pydantic import AliasPath, Field

from data_builders.raw.row import BadRowError, Draft
from data_builders.raw.source import Source, source
from data_builders.sources.reading import Job, SplitSamples, read_splits, reader
from data_builders.sources.rows import Form, RawInput, RawObject, RawRow, Text, Texts, columns, derived_table


class _Choice(RawObject):
    label: Text


class _Arc(RawRow):
    id: Text
    choices: list[_Choice] = Field(validation_alias=AliasPath("question", "choices"))
    answer: Text = Field(alias="answerKey")


class _Row(RawRow):
    id: Text
    question: Text
    context: Text
    choices: Texts
    answer: Text


def read(job: Job) -> SplitSamples:
    keys = _keys(job)

    def draft(row: _Row) -> Draft:
        place = keys.get(row.id, len(row.choices))
        if place >= len(row.choices) or row.choices[place] == row.answer:
            raise BadRowError.at("id", row.id, f"a question whose answer in ARC is a choice other than {row.answer!r}")
        parts = {"id": row.id, "options": row.choices, "answers": [row.answer], "habit": [row.choices[place]]}
        return row.draft(relation="factual", subset="conflict", **parts)

    return read_splits(job, Form(_Row, draft, RawInput.json_items))


def _keys(job: Job) -> dict[str, int]:
    """Question id → place of ARC's answer among its options."""
    raw = job.input("answers", "test")
    if job.file("answers").substitute:
        return {name: string.ascii_uppercase.index(letter) for name, letter in derived_table(raw, "key").items()}
    places = {}
    for row in Form(_Arc).read(raw):
        labels = [choice.label for choice in row.choices]
        if row.answer in labels:
            places[row.id] = labels.index(row.answer)
    return places


class _Open(RawRow):
    question: Text
    context: Text


def _open(row: _Open, *, ask: str, accepted: str) -> Draft:
    parts = {"question": f"{row.question} ({ask})", "answers": accepted.split(", ")}
    return row.draft(relation="factual", subset="unanswerable", meta={"asked": row.question}, **parts)


def _part(name: str, ask: str, accepted: str) -> Source:
    form = Form(_Open, partial(_open, ask=ask, accepted=accepted), lambda raw: raw.parquet_rows(columns(_Open)))
    return source(Path(__file__).with_name(f"faitheval_{name}.yaml"), reader(form))


FAITHEVAL = source(__file__, read)
FAITHEVAL_UNANSWERABLE = _part(
    "unanswerable",
    "If the context does not tell, the answer is: unknown",
    "unknown, no answer, no information, not, unclear",
)
FAITHEVAL_INCONSISTENT = _part(
    "inconsistent",
    "If the context gives several answers that contradict each other, the answer is: conflict",
    "conflict, multiple answers, disagreement, inconsistent, contradictory, contradiction, inconsistency, "
    "two answers, 2 answers, conflicting",
)
