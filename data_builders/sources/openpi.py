"""OpenPI (Tandon et al., EMNLP 2020): which attributes of which entities does a step change, and from what to what?

CREPE's paper trains a model on the 3,216 training steps and takes the states that it predicts (section 5.3). An answer
lists all changes of a step, a sentence each.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import AfterValidator

from data_builders.raw.facts import source
from data_builders.raw.reader import RawInput
from data_builders.raw.row import Draft, Row
from data_builders.raw.source import Job, SplitSamples
from data_builders.sources.filters import read_splits
from data_builders.sources.rows import Form, RawRow, Text

_END = "Now, what happens?"


def _steps(question: str) -> str:
    if not question.endswith(_END) or not (steps := question.removesuffix(_END).strip()):
        raise ValueError(f"expected the steps so far and {_END!r}")
    return steps


class _Step(RawRow):
    id: Text
    question: Annotated[Text, AfterValidator(_steps)]
    answers: list[Text]


def _draft(row: _Step) -> Draft:
    page, _, step = row.id.partition("||")
    return Draft(
        number=row.number,
        relation="temporal",
        context=row.question,
        question="What does the latest step change?",
        answers=["\n".join(f"- {change}" for change in row.answers) or "There will be no change."],
        meta={"page": page, "step": step},
    )


def _with_answers(steps: RawInput, answers: RawInput) -> Iterator[Row]:
    """Return each step with the answers of its id; steps without any are bad rows."""
    found = {str(row.fields.get("id")): row.fields for row in answers.json_lines()}  # an id that is no text is bad
    return (Row(row.number, {**found.get(str(row.fields.get("id")), {}), **row.fields}) for row in steps.json_lines())


def _read(job: Job) -> SplitSamples:
    def rows(raw: RawInput) -> Iterator[Row]:
        return _with_answers(raw, job.input(f"{raw.split}_answers", raw.split))

    return read_splits(job, Form(_Step, _draft, rows))


OPENPI = source(__file__, _read)
