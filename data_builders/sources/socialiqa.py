"""SocialIQA (Sap et al., EMNLP 2019): what comes before, after or along with what somebody does, and why?

PIPER uses it as an out-of-distribution test (appendix G). The labels of the published test are hidden, so the test is
the development file (1,954 rows). PIPER names no relation: the questions ask for reasons, needs, reactions and
consequences of an event, so the rows count as causal.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from d2e_sft.data.sample import Split
from data_builders.raw.reader import Draft
from data_builders.raw.source import Job, Samples
from data_builders.sources.facts import source
from data_builders.sources.rows import Form, RawRow, Text, labelled, read_splits


class _Row(RawRow):
    context: Text
    question: Text
    answer1: Text = Field(alias="answerA")
    answer2: Text = Field(alias="answerB")
    answer3: Text = Field(alias="answerC")
    label: Literal["1", "2", "3"]


def _draft(row: _Row) -> Draft:
    options = [row.answer1, row.answer2, row.answer3]
    return Draft(
        number=row.number,
        relation="causal",
        context=row.context,
        question=row.question,
        options=dict.fromkeys(options),  # five published rows offer an answer twice
        answers=[options[int(row.label) - 1]],
    )


def read(job: Job) -> dict[Split, Samples]:
    """Read the test."""
    return read_splits(job, Form(_Row, _draft, lambda raw: labelled(_Row, raw, job.input("labels", "test"))))


SOCIALIQA = source(__file__, read=read)
