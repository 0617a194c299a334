"""WIQA (Tandon et al., EMNLP 2019): does a change in a process lead to more, to less or to no effect?

PIPER takes the 3,003 test rows as they are. The steps of a process are joined to a paragraph; paragraphs of the
test are not trained on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from d2e_sft.data.sample import EventSample, Split
from data_builders.raw.bad_rows import MISSING, BadRowError
from data_builders.raw.fields import choice_field, object_field, text_field, text_list
from data_builders.raw.reader import RawInput
from data_builders.raw.source import Input, Job, RawFile, Source, SplitRows
from data_builders.sources.rows import not_in_test
from data_builders.text.texts import fingerprint

_RELEASE = "wiqa-dataset-v2-october-2019"
_HOST = "https://public-aristo-processes.s3-us-west-2.amazonaws.com"
_URL = f"{_HOST}/wiqa_dataset_no_explanation_v2"
_LICENCE = "Apache-2.0"

# No checksum of the training file is known.
TRAIN = RawFile(name="train.jsonl", url=f"{_URL}/train.jsonl", commit=_RELEASE)
TEST = RawFile(
    name="test.jsonl",
    url=f"{_URL}/test.jsonl",
    commit=_RELEASE,
    sha256="17cbff9335a6c3221eadbdc023dde656634bb4f8d1feec3863e8ce37d37b392c",
    bytes=2_168_289,
)

# What the questions were drawn from; the benchmark of its own reads it. No checksum is known.
GRAPHS = RawFile(name="wiqa_influence_graphs.jsonl", url=f"{_HOST}/wiqa_influence_graphs.jsonl", commit=_RELEASE)

# Label → the text of the option.
OPTIONS = {"more": "more", "less": "less", "no_effect": "no effect"}
_QUESTION_TYPES = ("INPARA_EFFECT", "EXOGENOUS_EFFECT", "OUTOFPARA_DISTRACTOR")


@dataclass(frozen=True)
class _Row:
    line: int
    context: str
    question: str
    answer: str
    paragraph: str
    graph: str
    question_type: str
    path_length: int


def read(job: Job) -> dict[Split, SplitRows]:
    """Build train and test (3,003 rows, PIPER table 7)."""
    test_raw = job.input("test", "test")
    test_rows = test_raw.parse(test_raw.json_lines(), _parse)
    test = SplitRows([], rows_read=len(test_rows))
    test.samples = test_raw.samples(test_rows, lambda row: _sample(test_raw, row))
    if not job.wants("train"):
        return {"test": test}

    train_raw = job.input("train", "train")
    train_rows = train_raw.parse(train_raw.json_lines(), _parse)
    train = SplitRows([], rows_read=len(train_rows))
    clean = train.filters.record(
        "paragraphs of the test",
        "the question is about a paragraph, by its name or its text, that the test has too",
        train_rows,
        not_in_test(train_rows, test_rows, lambda row: row.paragraph, lambda row: fingerprint(row.context)),
    )
    train.samples = train_raw.samples(clean, lambda row: _sample(train_raw, row))
    return {"train": train, "test": test}


def _parse(line: int, row: dict[str, Any]) -> _Row:
    question, metadata = (object_field(row, name) for name in ("question", "metadata"))
    steps = [step for step in text_list("question.para_steps", question.get("para_steps", MISSING)) if step]
    if not steps:
        raise BadRowError.at("question.para_steps", question["para_steps"], "at least one step")
    label = choice_field("question.answer_label", question.get("answer_label", MISSING), OPTIONS)
    length = metadata.get("path_len", MISSING)
    if type(length) is not int:
        raise BadRowError.at("metadata.path_len", length, "a whole number")
    return _Row(
        line,
        " ".join(map(as_sentence, steps)),
        text_field(question, "stem", "question."),
        OPTIONS[label],
        text_field(metadata, "para_id", "metadata."),
        text_field(metadata, "graph_id", "metadata."),
        choice_field("metadata.question_type", metadata.get("question_type", MISSING), _QUESTION_TYPES),
        length,
    )


def as_sentence(step: str) -> str:
    """The step with a full stop, which most steps lack."""
    return step if step.endswith((".", "!", "?")) else f"{step}."


def _sample(raw: RawInput, row: _Row) -> EventSample:
    return EventSample(
        id=f"wiqa-{raw.split}-{row.line}",
        dataset="wiqa",
        split=raw.split,
        relation="counterfactual",
        format="scq",
        context=row.context,
        question=row.question,
        options=list(OPTIONS.values()),
        answers=[row.answer],
        meta={
            "source": raw.name,
            "line": row.line,
            "question_type": row.question_type,
            "path_len": row.path_length,
            "para_id": row.paragraph,
            "graph_id": row.graph,
            "licence": _LICENCE,
        },
    )


WIQA = Source(
    name="wiqa",
    format="scq",
    licence=f"{_LICENCE} (the repository's; none is stated for the data apart from it)",
    homepage="https://github.com/allenai/wiqa-dataset",
    inputs=(Input("train", (TRAIN,), ("train",)), Input("test", (TEST,), ("train", "test"))),
    read=read,
    others=(GRAPHS,),
    notes={
        "context": "the steps of the process, each with a full stop",
        "path_len": "nodes on the path from cause to effect, so one more than its steps; 0 for no effect",
    },
)
