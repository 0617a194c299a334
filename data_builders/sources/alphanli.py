"""αNLI (Bhagavatula et al., ICLR 2020): what happened between two observations?

PIPER evaluates on it out of distribution (appendix G) and trains on none of it. The labels of the published test
are hidden, so the test is the development file. PIPER does not say which relation it belongs to: the right
hypothesis is the one that explains the second observation, so it counts as causal, not as temporal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from d2e_sft.data.sample import EventSample, Split
from data_builders.raw.bad_rows import BadRowError
from data_builders.raw.fields import text_field
from data_builders.raw.reader import RawInput
from data_builders.raw.source import Input, Job, RawFile, Source, SplitRows
from data_builders.sources.labelled_lines import chosen, labelled

_FOLDER = "ood/alphanli"
_LICENCE = "not stated by the publisher"
_ARCHIVE = "https://storage.googleapis.com/ai2-mosaic/public/alphanli/alphanli-train-dev.zip"

# The members are those that public readers of the archive use, untried here; no checksum is known.
ROWS = RawFile(name="dev.jsonl", url=_ARCHIVE, member="dev.jsonl")
LABELS = RawFile(name="dev-labels.lst", url=_ARCHIVE, member="dev-labels.lst")

# It names neither observation, so that the imagined view, which has no context, does not show them either.
QUESTION = "What happened between the first observation and the second observation, and explains the second?"


@dataclass(frozen=True)
class _Row:
    line: int
    story: str
    observations: tuple[str, str]
    hypotheses: tuple[str, ...]
    answer: str


def read(job: Job) -> dict[Split, SplitRows]:
    """Build test (1,532 rows)."""
    raw = job.input("rows", "test", folder=_FOLDER)
    rows = raw.parse(labelled(raw, job.input("labels", "test", folder=_FOLDER), ("1", "2")), _parse)
    result = SplitRows([], rows_read=len(rows))
    result.samples = raw.samples(rows, lambda row: _sample(raw, row))
    return {"test": result}


def _parse(line: int, row: dict[str, Any]) -> _Row:
    hypotheses = [text_field(row, name) for name in ("hyp1", "hyp2")]
    if hypotheses[0] == hypotheses[1]:
        raise BadRowError.at("hyp2", hypotheses[1], "a hypothesis that differs from hyp1")
    observations = (text_field(row, "obs1"), text_field(row, "obs2"))
    return _Row(line, text_field(row, "story_id"), observations, tuple(hypotheses), chosen(row, hypotheses))


def _sample(raw: RawInput, row: _Row) -> EventSample:
    return EventSample(
        id=f"alphanli-{raw.split}-{row.line}",
        dataset="alphanli",
        split=raw.split,
        relation="causal",
        format="scq",
        context="First observation: {}\nSecond observation: {}".format(*row.observations),
        question=QUESTION,
        options=list(row.hypotheses),
        answers=[row.answer],
        meta={"source": raw.name, "line": row.line, "story_id": row.story, "licence": _LICENCE},
    )


ALPHANLI = Source(
    name="alphanli",
    format="scq",
    licence=_LICENCE,
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
