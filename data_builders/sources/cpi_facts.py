"""CF World Facts (Goyal et al., "Context-Parametric Inversion", ICLR 2025): short passages against well-known facts.

Each passage says something else than what is known, mostly that a capital was moved; the known answer is recorded and
stands in most passages too, so that pointing at a name is not enough.
"""

from __future__ import annotations

import re

from d2e_sft.data.sample import Split
from data_builders.raw.reader import Draft
from data_builders.raw.row import Row
from data_builders.raw.source import Input, Job, Samples, Source, SplitRows, github

FACTS = github("locuslab/context-parametric-inversion", "6f989849656f433d4520eaf0b9af6e3bb6a7ae70").file(
    "world_facts.json", "a040ca190e4b3517474a229b9e97083df077aedce27bd92fb263018e00c1982c", 193_088
)
_REMARK = re.compile(r"\([^()]*\)")


def read(job: Job) -> dict[Split, Samples]:
    """Build test (313 rows, all conflict)."""
    raw = job.input("test")
    rows = SplitRows(raw.parse(raw.json_items(), _parse))
    return {"test": rows.become(raw.parse(rows.rows, raw.sample))}


def _parse(row: Row) -> Draft:
    known = row.text("memory_answer")
    habit = alternatives(known)
    if not habit:
        raise row.error("memory_answer", "an answer outside brackets")
    return Draft(
        number=row.number,
        relation="factual",
        context=row.text("context"),
        question=row.text("question"),
        answers=[row.text("answer")],
        subset="conflict",
        habit=habit,
        meta={"memory_answer": known} if habit != [known] else {},
    )


def alternatives(answer: str) -> list[str]:
    """The answers of one field, divided by semicolons, without remarks in brackets: "A (old); B" is A and B."""
    parts = (" ".join(_REMARK.sub(" ", part).split()) for part in answer.split(";"))
    return list(dict.fromkeys(filter(None, parts)))


CPI_FACTS = Source(
    name="cpi_facts",
    format="qa",
    licence="not stated by the publisher",
    homepage="https://github.com/locuslab/context-parametric-inversion",
    folder="conflict/cpi-world-facts",
    inputs=(Input("test", (FACTS,), ("test",)),),
    splits=("test",),
    read=read,
    redistribution="the publishers state no licence",
    notes={"habit": "memory_answer, divided at semicolons, without what stands in brackets"},
)
