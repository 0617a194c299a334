"""e-CARE (Du et al., ACL 2022): which of two statements is the cause, or the effect, of a premise?

The test set of the publishers is blind, so PIPER's 2,122 test samples are `dev_full.jsonl`. That file also holds
`conceptual_explanation`, which gives the answer away and is never read. Some test premises occur in the training
file, in part with the same correct statement; those training rows are left out.
"""

from __future__ import annotations

from d2e_sft.data.sample import Split
from data_builders.raw.reader import Draft, RawInput
from data_builders.raw.row import Row
from data_builders.raw.source import Input, Job, Samples, Source, SplitRows, github
from data_builders.sources.rows import first_of_each, not_in_test

_FILES = github("Waste-Wood/e-CARE", "c3b52648adcc919303a297a377811e24d703e197", "dataset")

# The folder of --raw is flat, the official repository is not.
TRAIN = _FILES.file(
    "train.jsonl",
    "540f828fe640f0bbef0e16c47a933b65625f49f20aef8a45884a836eb9c034c3",
    3_495_616,
    path="Causal_Reasoning/train.jsonl",
)
TEST = _FILES.file("dev_full.jsonl", "e8e3f8451d727184577486f65fbeb759b12535f78e05d51b29dd443453c2c995", 650_057)

QUESTIONS = {
    "cause": "What is the cause of the event in the context?",
    "effect": "What is the effect of the event in the context?",
}


def read(job: Job) -> dict[Split, Samples]:
    """Build train (14,569 rows) and test (2,122 rows, PIPER table 7)."""
    test = _read_split(job.input("test"))
    if not job.wants("train"):
        return {"test": test}
    train = _read_split(job.input("train"))
    train.keep(
        "repeated rows",
        "the same premise, question, statements and label more than once would be trained on twice",
        first_of_each(train.rows, lambda row: (row.context, row.question, tuple(row.options), row.answers[0])),
    )
    train.keep(
        "premises of the test",
        "the premise is also a test premise (letter case ignored), so the answer may be the same too",
        not_in_test(train.rows, test.rows, lambda row: row.context.casefold()),
    )
    return {"train": train, "test": test}


def _read_split(raw: RawInput) -> Samples:
    return SplitRows(raw.parse(raw.json_lines(), lambda row: raw.sample(_parse(row))))


def _parse(row: Row) -> Draft:
    premise, index = row.text("premise"), row.text("index")
    ask_for = row.choice("ask-for", QUESTIONS)
    hypotheses = [row.text("hypothesis1"), row.text("hypothesis2")]
    if hypotheses[0] == hypotheses[1]:
        raise row.error("hypothesis2", "a statement that differs from hypothesis1", hypotheses[1])
    expected = "0 (hypothesis1) or 1 (hypothesis2)"
    label = row.integer("label", expected)
    if label not in (0, 1):
        raise row.error("label", expected)
    return Draft(
        number=row.number,
        relation="causal",
        context=premise,
        question=QUESTIONS[ask_for],
        options=hypotheses,
        answers=[hypotheses[label]],
        meta={"index": index, "ask_for": ask_for},
    )


ECARE = Source(
    name="ecare",
    format="scq",
    licence="MIT",
    homepage="https://github.com/Waste-Wood/e-CARE",
    inputs=(Input("train", (TRAIN,), ("train",)), Input("test", (TEST,), ("train", "test"))),
    read=read,
    notes={
        "test": "the published development set (dev_full.jsonl); conceptual_explanation is not used",
        "context": "the context is the premise alone, one sentence in nearly every row",
    },
)
