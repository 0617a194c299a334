"""FaithEval, counterfactual part (Ming et al., ICLR 2025): science questions with a passage for a wrong option.

The questions are those of ARC-Challenge. A generated passage argues for an option that is wrong in the world and right
by the passage: every row is a `conflict`, and the habit is the answer of ARC.
"""

from __future__ import annotations

import string
from collections.abc import Mapping

from d2e_sft.data.sample import Split
from data_builders.raw.reader import Draft
from data_builders.raw.row import BadRowError, Row, one_of
from data_builders.raw.source import Input, Job, RawFile, Samples, Source, SplitRows
from data_builders.sources.kre_squad import FAITHFUL_RAG

PASSAGES = FAITHFUL_RAG.file(
    "faitheval_data.json", "b2ee9fab0db4ab3cf18770ad086f9f0189850b6b79dcbbead67bee27a0d3eb14", 3_158_569
)
# The release is one archive of 680 MB, nearly all of it a text corpus.
ARC = RawFile(
    "ARC-Challenge-Test.jsonl",
    "https://ai2-public-datasets.s3.amazonaws.com/arc/ARC-V1-Feb2018.zip",
    "ARC-V1-Feb2018-2",
    "9fa8ffb3e3a1f88cb302d53dd95aae81e39209ad9bcf974376b319d8fd35717c",
    member="ARC-V1-Feb2018-2/ARC-Challenge/ARC-Challenge-Test.jsonl",
)
KEYS = RawFile(
    "derived/original_keys.json",
    sha256="23b34663dcc76c8e560b72d320c6dbe26820d5d883c461d1f098a5359b82c533",
    bytes=22_692,
    by_hand="it is a table that was made from ARC; get ARC instead",
    substitute="a table of ARC's answers to these questions, by id",
)
_LETTERS = string.ascii_uppercase


def read(job: Job) -> dict[Split, Samples]:
    """Build test (1,000 rows, all conflict)."""
    raw, keys = job.input("test"), _keys(job)
    rows = SplitRows(raw.parse(raw.json_items(), lambda row: _parse(row, keys)))
    return {"test": rows.become(raw.parse(rows.rows, raw.sample))}


def _keys(job: Job) -> dict[str, int]:
    """By id of a question, the place of ARC's answer among its options."""
    raw = job.input("answers", "test")
    if job.file("answers") is not KEYS:
        return dict(raw.parse(raw.json_lines(), _arc_key))
    tables = raw.parse(raw.json_lines(), lambda row: _table(row.object("key").fields))
    return {name: place for table in tables for name, place in table.items()}


def _arc_key(row: Row) -> tuple[str, int]:
    labels = [choice.text("label") for choice in row.object("question").objects("choices")]
    return row.text("id"), labels.index(row.choice("answerKey", labels))


def _table(keys: Mapping[str, object]) -> dict[str, int]:
    return {name: _LETTERS.index(one_of(f"key.{name}", letter, _LETTERS)) for name, letter in keys.items()}


def _parse(row: Row, keys: Mapping[str, int]) -> Draft:
    name, options = row.text("id"), row.texts("choices")
    answer = row.text("answer")
    letter = row.choice("answerKey", _LETTERS[: len(options)])
    if options[_LETTERS.index(letter)] != answer:
        raise row.error("answer", f"the option that answerKey names, {options[_LETTERS.index(letter)]!r}")
    if name not in keys:
        raise row.error("id", "a question that ARC answers")
    if keys[name] >= len(options) or options[keys[name]] == answer:
        raise BadRowError.at("id", name, f"a question whose answer in ARC is one of {options} and not {answer!r}")
    return Draft(
        number=row.number,
        id=name,
        relation="factual",
        context=row.text("context"),
        question=row.text("question"),
        options=options,
        answers=[answer],
        subset="conflict",
        habit=[options[keys[name]]],
    )


FAITHEVAL = Source(
    name="faitheval",
    format="scq",
    licence="Apache-2.0 (of FaithEval's repository; ARC is CC BY-SA 4.0)",
    homepage="https://github.com/SalesforceAIResearch/FaithEval",
    folder="conflict/faitheval",
    inputs=(Input("test", (PASSAGES,), ("test",)), Input("answers", (ARC, KEYS), ("test",))),
    splits=("test",),
    read=read,
    redistribution="the publishers ask for research use only, and the file comes from a repository without a licence",
    notes={
        "file": "the copy in the repository of FaithfulRAG; the publishers' own is on the Hub "
        "(Salesforce/FaithEval-counterfactual-v1.0) and was not compared byte by byte",
        "habit": "ARC's answer: the option in the place that it has among ARC's options, whose order is the same",
    },
)
