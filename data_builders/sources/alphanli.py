"""αNLI (Bhagavatula et al., ICLR 2020): what happened between two observations?

PIPER evaluates on it out of distribution (appendix G) and trains on none of it. The labels of the published test
are hidden, so the test is the development file. PIPER does not say which relation it belongs to: the right
hypothesis is the one that explains the second observation, so it counts as causal, not as temporal.
"""

from __future__ import annotations

from d2e_sft.data.sample import Split
from data_builders.raw.reader import Draft
from data_builders.raw.row import Row
from data_builders.raw.source import Input, Job, RawFile, Samples, Source, SplitRows
from data_builders.sources.rows import chosen, labelled

_FOLDER = "ood/alphanli"
_ARCHIVE = "https://storage.googleapis.com/ai2-mosaic/public/alphanli/alphanli-train-dev.zip"

# The members are those that public readers of the archive use, untried here; no checksum is known.
ROWS = RawFile(name="dev.jsonl", url=_ARCHIVE, member="dev.jsonl")
LABELS = RawFile(name="dev-labels.lst", url=_ARCHIVE, member="dev-labels.lst")

# It names neither observation, so that the imagined view, which has no context, does not show them either.
QUESTION = "What happened between the first observation and the second observation, and explains the second?"


def read(job: Job) -> dict[Split, Samples]:
    """Build test (1,532 rows)."""
    raw = job.input("rows", "test")
    rows = labelled(raw, job.input("labels", "test"), ("1", "2"))
    return {"test": SplitRows(raw.parse(rows, lambda row: raw.sample(_parse(row))))}


def _parse(row: Row) -> Draft:
    hypotheses = [row.text(name) for name in ("hyp1", "hyp2")]
    if hypotheses[0] == hypotheses[1]:
        raise row.error("hyp2", "a hypothesis that differs from hyp1", hypotheses[1])
    first, second = row.text("obs1"), row.text("obs2")
    return Draft(
        number=row.number,
        relation="causal",
        context=f"First observation: {first}\nSecond observation: {second}",
        question=QUESTION,
        options=hypotheses,
        answers=[chosen(row, hypotheses)],
        meta={"story_id": row.text("story_id")},
    )


ALPHANLI = Source(
    name="alphanli",
    format="scq",
    licence="not stated by the publisher",
    homepage="https://github.com/allenai/abductive-commonsense-reasoning",
    inputs=(Input("rows", (ROWS,), ("test",)), Input("labels", (LABELS,), ("test",))),
    read=read,
    folder=_FOLDER,
    redistribution="no licence of the data was found",
    splits=("test",),
    notes={
        "test": "the published development file, out of distribution: nothing of it is trained on",
        "relation": "causal is this project's choice; PIPER gives none",
    },
)
