"""e-CARE (Du et al., ACL 2022): which of two statements is the cause, or the effect, of a premise?

The test set of the publishers is blind, so PIPER's 2,122 test samples are `dev_full.jsonl`. That file also holds
`conceptual_explanation`, which gives the answer away and is never read. Some test premises occur in the training
file, in part with the same correct statement; those training rows are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from d2e_sft.data.sample import EventSample, Split
from data_builders.raw.bad_rows import MISSING, BadRowError
from data_builders.raw.fields import choice_field, text_field
from data_builders.raw.reader import RawInput
from data_builders.raw.source import Input, Job, RawFile, Source, SplitRows
from data_builders.sources.rows import first_of_each, not_in_test

_COMMIT = "c3b52648adcc919303a297a377811e24d703e197"
_URL = f"https://raw.githubusercontent.com/Waste-Wood/e-CARE/{_COMMIT}/dataset"
_LICENCE = "MIT"

# The folder of --raw is flat, the official repository is not.
TRAIN = RawFile(
    name="train.jsonl",
    url=f"{_URL}/Causal_Reasoning/train.jsonl",
    commit=_COMMIT,
    sha256="540f828fe640f0bbef0e16c47a933b65625f49f20aef8a45884a836eb9c034c3",
    bytes=3_495_616,
)
TEST = RawFile(
    name="dev_full.jsonl",
    url=f"{_URL}/dev_full.jsonl",
    commit=_COMMIT,
    sha256="e8e3f8451d727184577486f65fbeb759b12535f78e05d51b29dd443453c2c995",
    bytes=650_057,
)

QUESTIONS = {
    "cause": "What is the cause of the event in the context?",
    "effect": "What is the effect of the event in the context?",
}


@dataclass(frozen=True)
class _Row:
    line: int
    index: str
    premise: str
    ask_for: str
    hypotheses: tuple[str, str]
    label: int

    @property
    def content(self) -> tuple[str, str, tuple[str, str], int]:
        return self.premise, self.ask_for, self.hypotheses, self.label

    @property
    def premise_key(self) -> str:
        return self.premise.casefold()


def read(job: Job) -> dict[Split, SplitRows]:
    """Build train (14,569 rows) and test (2,122 rows, PIPER table 7)."""
    test_raw = job.input("test", "test")
    test_rows = test_raw.parse(test_raw.json_lines(), _parse)
    test = SplitRows([], rows_read=len(test_rows))
    test.samples = test_raw.samples(test_rows, lambda row: _sample(test_raw, row))
    if not job.wants("train"):
        return {"test": test}

    train_raw = job.input("train", "train")
    train_rows = train_raw.parse(train_raw.json_lines(), _parse)
    train = SplitRows([], rows_read=len(train_rows))
    distinct = train.filters.record(
        "repeated rows",
        "the same premise, question, statements and label more than once would be trained on twice",
        train_rows,
        first_of_each(train_rows, lambda row: row.content),
    )
    clean = train.filters.record(
        "premises of the test",
        "the premise is also a test premise (letter case ignored), so the answer may be the same too",
        distinct,
        not_in_test(distinct, test_rows, lambda row: row.premise_key),
    )
    train.samples = train_raw.samples(clean, lambda row: _sample(train_raw, row))
    return {"train": train, "test": test}


def _parse(line: int, row: dict[str, Any]) -> _Row:
    premise, index = text_field(row, "premise"), text_field(row, "index")
    ask_for = choice_field("ask-for", row.get("ask-for", MISSING), QUESTIONS)
    hypotheses = (text_field(row, "hypothesis1"), text_field(row, "hypothesis2"))
    if hypotheses[0] == hypotheses[1]:
        raise BadRowError.at("hypothesis2", hypotheses[1], "a statement that differs from hypothesis1")
    label = row.get("label", MISSING)
    # `True` is an int to Python, but no label.
    if isinstance(label, bool) or not isinstance(label, int) or label not in (0, 1):
        raise BadRowError.at("label", label, "0 (hypothesis1) or 1 (hypothesis2)")
    return _Row(line, index, premise, ask_for, hypotheses, label)


def _sample(raw: RawInput, row: _Row) -> EventSample:
    return EventSample(
        id=f"ecare-{raw.split}-{row.line}",
        dataset="ecare",
        split=raw.split,
        relation="causal",
        format="scq",
        context=row.premise,
        question=QUESTIONS[row.ask_for],
        options=list(row.hypotheses),
        answers=[row.hypotheses[row.label]],
        meta={"source": raw.name, "line": row.line, "index": row.index, "ask_for": row.ask_for, "licence": _LICENCE},
    )


ECARE = Source(
    name="ecare",
    format="scq",
    licence=_LICENCE,
    homepage="https://github.com/Waste-Wood/e-CARE",
    inputs=(Input("train", (TRAIN,), ("train",)), Input("test", (TEST,), ("train", "test"))),
    read=read,
    notes={
        "test": "the published development set (dev_full.jsonl); conceptual_explanation is not used",
        "context": "the context is the premise alone, one sentence in nearly every row",
    },
)
