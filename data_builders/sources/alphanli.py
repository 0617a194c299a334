"""αNLI (Bhagavatula et al., ICLR 2020): what happened between two observations?

PIPER uses it as an out-of-distribution test (appendix G). The labels of the published test are hidden, so the test is
the development file (1,532 rows). PIPER names no relation: the right hypothesis explains the second observation, so
the rows count as causal.
"""

from __future__ import annotations

from typing import Literal

from d2e_sft.data.sample import Split
from data_builders.raw.reader import Draft
from data_builders.raw.source import Job, Samples
from data_builders.sources.facts import source
from data_builders.sources.rows import Form, RawRow, Text, labelled, read_splits

# The question names neither observation, so the imagined view, which has no context, does not show them.
QUESTION = "What happened between the first observation and the second observation, and explains the second?"


class _Row(RawRow):
    story_id: Text
    obs1: Text
    obs2: Text
    hyp1: Text
    hyp2: Text
    label: Literal["1", "2"]


def _draft(row: _Row) -> Draft:
    return Draft(
        number=row.number,
        relation="causal",
        context=f"First observation: {row.obs1}\nSecond observation: {row.obs2}",
        question=QUESTION,
        options=[row.hyp1, row.hyp2],
        answers=[row.hyp1 if row.label == "1" else row.hyp2],
        meta={"story_id": row.story_id},
    )


def read(job: Job) -> dict[Split, Samples]:
    """Read the test."""
    return read_splits(job, Form(_Row, _draft, lambda raw: labelled(_Row, raw, job.input("labels", "test"))))


ALPHANLI = source(__file__, read=read)
