"""SocialIQA (Sap et al., EMNLP 2019): what comes before, after or along with what somebody does, and why?

PIPER evaluates on it out of distribution (appendix G) and trains on none of it. The labels of the published test
are hidden, so the test is the development file. PIPER does not say which relation it belongs to: the questions ask
for reasons, needs, reactions and consequences of an event, so it counts as causal.
"""

from __future__ import annotations

from d2e_sft.data.sample import Split
from data_builders.raw.reader import Draft
from data_builders.raw.row import Row
from data_builders.raw.source import Input, Job, RawFile, Samples, Source, SplitRows
from data_builders.sources.rows import chosen, labelled

_FOLDER = "ood/socialiqa"
_ARCHIVE = "https://storage.googleapis.com/ai2-mosaic/public/socialiqa/socialiqa-train-dev.zip"

# Address and members are those that public readers of the archive use, untried here; no checksum is known.
ROWS = RawFile(name="dev.jsonl", url=_ARCHIVE, member="socialiqa-train-dev/dev.jsonl")
LABELS = RawFile(name="dev-labels.lst", url=_ARCHIVE, member="socialiqa-train-dev/dev-labels.lst")

_ANSWERS = ("answerA", "answerB", "answerC")


def read(job: Job) -> dict[Split, Samples]:
    """Build test (1,954 rows)."""
    raw = job.input("rows", "test")
    rows = labelled(raw, job.input("labels", "test"), ("1", "2", "3"))
    return {"test": SplitRows(raw.parse(rows, lambda row: raw.sample(_parse(row))))}


def _parse(row: Row) -> Draft:
    options = [row.text(name) for name in _ANSWERS]
    return Draft(
        number=row.number,
        relation="causal",
        context=row.text("context"),
        question=row.text("question"),
        # Five published rows have the same answer twice; it is offered once, and the right one stays right.
        options=dict.fromkeys(options),
        answers=[chosen(row, options)],
    )


SOCIALIQA = Source(
    name="socialiqa",
    format="scq",
    licence="not stated by the publisher",
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
