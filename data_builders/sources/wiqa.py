"""WIQA (Tandon et al., EMNLP 2019): does a change in a process lead to more, to less or to no effect?

PIPER takes the 3,003 test rows as they are. The steps of a process are joined to a paragraph; paragraphs of the
test are not trained on.
"""

from __future__ import annotations

import re

from d2e_sft.data.sample import Split
from data_builders.raw.reader import Draft, RawInput
from data_builders.raw.row import Row
from data_builders.raw.source import Input, Job, RawFile, Release, Samples, Source, SplitRows
from data_builders.sources.rows import not_in_test
from data_builders.text.texts import fingerprint

_RELEASE = "wiqa-dataset-v2-october-2019"
_HOST = "https://public-aristo-processes.s3-us-west-2.amazonaws.com"
_FILES = Release(f"{_HOST}/wiqa_dataset_no_explanation_v2", _RELEASE)

# No checksum of the training file is known.
TRAIN = _FILES.file("train.jsonl")
TEST = _FILES.file("test.jsonl", "17cbff9335a6c3221eadbdc023dde656634bb4f8d1feec3863e8ce37d37b392c", 2_168_289)

# What the questions were drawn from; the benchmark of its own reads it. No checksum is known.
GRAPHS = RawFile(name="wiqa_influence_graphs.jsonl", url=f"{_HOST}/wiqa_influence_graphs.jsonl", commit=_RELEASE)

# Label → the text of the option.
OPTIONS = {"more": "more", "less": "less", "no_effect": "no effect"}
_STEM = re.compile(r"suppose (.+?) happens, how will it affect (.+?)\s*[.?]?\s*", re.IGNORECASE | re.DOTALL)
_QUESTION_TYPES = ("INPARA_EFFECT", "EXOGENOUS_EFFECT", "OUTOFPARA_DISTRACTOR")


def read(job: Job) -> dict[Split, Samples]:
    """Build train and test (3,003 rows, PIPER table 7)."""
    test = _read_split(job.input("test"))
    if not job.wants("train"):
        return {"test": test}
    train = _read_split(job.input("train"))
    train.keep(
        "paragraphs of the test",
        "the question is about a paragraph, by its name or its text, that the test has too",
        not_in_test(train.rows, test.rows, lambda row: row.meta["para_id"], lambda row: fingerprint(row.context)),
    )
    return {"train": train, "test": test}


def _read_split(raw: RawInput) -> Samples:
    return SplitRows(raw.parse(raw.json_lines(), lambda row: raw.sample(_parse(row))))


def _parse(row: Row) -> Draft:
    question, metadata = row.object("question"), row.object("metadata")
    steps = [step for step in question.texts("para_steps") if step]
    if not steps:
        raise question.error("para_steps", "at least one step")
    label, length = question.choice("answer_label", OPTIONS), metadata.integer("path_len")
    stem = question.text("stem")
    cause_and_effect = _STEM.fullmatch(stem)
    return Draft(
        number=row.number,
        relation="counterfactual",
        context=" ".join(map(as_sentence, steps)),
        question=stem,
        options=list(OPTIONS.values()),
        answers=[OPTIONS[label]],
        meta={
            "para_id": metadata.text("para_id"),
            "graph_id": metadata.text("graph_id"),
            "question_type": metadata.choice("question_type", _QUESTION_TYPES),
            "path_len": length,
            **({"chain": list(cause_and_effect.groups())} if cause_and_effect else {}),
        },
    )


def as_sentence(step: str) -> str:
    """The step with a full stop, which most steps lack."""
    return step if step.endswith((".", "!", "?")) else f"{step}."


WIQA = Source(
    name="wiqa",
    format="scq",
    licence="Apache-2.0 (the repository's; none is stated for the data apart from it)",
    homepage="https://github.com/allenai/wiqa-dataset",
    inputs=(Input("train", (TRAIN,), ("train",)), Input("test", (TEST,), ("train", "test"))),
    read=read,
    others=(GRAPHS,),
    notes={
        "context": "the steps of the process, each with a full stop",
        "chain": "the cause and the effect in the question; refined contexts keep their steps and those between",
        "path_len": "nodes on the path from cause to effect, so one more than its steps; 0 for no effect",
    },
)
