"""SocialIQA (Sap et al., EMNLP 2019): what comes before, after or along with what somebody does, and why?

PIPER evaluates on it out of distribution (appendix G) and trains on none of it. The labels of the published test
are hidden, so the test is the development file. PIPER does not say which relation it belongs to: the questions ask
for reasons, needs, reactions and consequences of an event, so it counts as causal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from d2e_sft.data.sample import EventSample, Split
from data_builders.raw.fields import text_field
from data_builders.raw.reader import RawInput
from data_builders.raw.source import Input, Job, RawFile, Source, SplitRows
from data_builders.sources.labelled_lines import chosen, labelled

_FOLDER = "ood/socialiqa"
_LICENCE = "not stated by the publisher"
_ARCHIVE = "https://storage.googleapis.com/ai2-mosaic/public/socialiqa/socialiqa-train-dev.zip"

# Address and members are those that public readers of the archive use, untried here; no checksum is known.
ROWS = RawFile(name="dev.jsonl", url=_ARCHIVE, member="socialiqa-train-dev/dev.jsonl")
LABELS = RawFile(name="dev-labels.lst", url=_ARCHIVE, member="socialiqa-train-dev/dev-labels.lst")

_ANSWERS = ("answerA", "answerB", "answerC")


@dataclass(frozen=True)
class _Row:
    line: int
    context: str
    question: str
    options: tuple[str, ...]
    answer: str


def read(job: Job) -> dict[Split, SplitRows]:
    """Build test (1,954 rows)."""
    raw = job.input("rows", "test", folder=_FOLDER)
    rows = raw.parse(labelled(raw, job.input("labels", "test", folder=_FOLDER), ("1", "2", "3")), _parse)
    result = SplitRows([], rows_read=len(rows))
    result.samples = raw.samples(rows, lambda row: _sample(raw, row))
    return {"test": result}


def _parse(line: int, row: dict[str, Any]) -> _Row:
    options = [text_field(row, name) for name in _ANSWERS]
    return _Row(line, text_field(row, "context"), text_field(row, "question"), tuple(options), chosen(row, options))


def _sample(raw: RawInput, row: _Row) -> EventSample:
    return EventSample(
        id=f"socialiqa-{raw.split}-{row.line}",
        dataset="socialiqa",
        split=raw.split,
        relation="causal",
        format="scq",
        context=row.context,
        question=row.question,
        # Five published rows have the same answer twice; it is offered once, and the right one stays right.
        options=list(dict.fromkeys(row.options)),
        answers=[row.answer],
        meta={"source": raw.name, "line": row.line, "licence": _LICENCE},
    )


SOCIALIQA = Source(
    name="socialiqa",
    format="scq",
    licence=_LICENCE,
    homepage="https://huggingface.co/datasets/allenai/social_i_qa",
    inputs=(Input("rows", (ROWS,), ("test",)), Input("labels", (LABELS,), ("test",))),
    read=read,
    folder=_FOLDER,
    redistribution="no licence of the data was found",
    splits=("test",),
    notes={
        "test": "the published development file, out of distribution: nothing of it is trained on",
        "relation": "causal is this project's choice; PIPER gives none",
        "options": "an answer that a row offers twice (five rows) is offered once",
    },
)
