"""CREPE (Zhang et al., Findings of EACL 2023): what does a step of a procedure do to the likelihood of an event?

Each (event, step) pair of the official files is a choice among three labels; only changes are written in them, so an
event that a block does not name is equally likely after its step. Block 0 is the start and is not asked about.
"""

from __future__ import annotations

from dataclasses import dataclass

from d2e_sft.data.sample import Split
from data_builders.raw.reader import Draft, RawInput
from data_builders.raw.row import BadRowError, Row
from data_builders.raw.source import Input, Job, Samples, Source, SplitRows, github
from data_builders.text.texts import goal_and_steps

_FILES = github("zharry29/causal_reasoning_of_entities_and_events", "90042cafd8d4d0da66be71762df64573d890fbd6")

DEV = _FILES.file("data_dev_v2.json", "0f5f0b5a6ca3d10e1e8e8b03d03ed364190f9ec89b69776b15e1ada149fd96b1", 117_437)
TEST = _FILES.file("data_test_v2.json", "3607d6d4ef7ae596716f234c355e9e4a17f2b67421d7038c30762b85c2bf243a", 321_729)

OPTIONS = ("more likely", "less likely", "equally likely")
_TYPES = ("step", "entity", "event")
_SPLITS: tuple[Split, ...] = ("dev", "test")


@dataclass(frozen=True)
class _Procedure:
    number: int
    name: str
    goal: str
    steps: list[str]
    changes: list[dict[str, str]]  # after each step: event → change

    @property
    def events(self) -> list[str]:
        return list(dict.fromkeys(event for changes in self.changes for event in changes))


def read(job: Job) -> dict[Split, Samples]:
    """Build dev (727 rows) and test (1,520 rows)."""
    return {split: _read_split(job.input(split)) for split in _SPLITS if job.wants(split)}


def _read_split(raw: RawInput) -> Samples:
    pairs = SplitRows(
        [
            _draft(procedure, step, number, event)
            for procedure in raw.parse(raw.json_members(), _parse)
            for step in range(1, len(procedure.steps) + 1)
            for number, event in enumerate(procedure.events)
        ]
    )
    return pairs.become(raw.parse(pairs.rows, raw.sample))


def _parse(row: Row) -> _Procedure:
    blocks = row.get("steps")
    if not isinstance(blocks, list) or len(blocks) < 2:
        raise row.error("steps", "the start and at least one step")
    parsed = [_block(block, f"steps.{place}", row.number) for place, block in enumerate(blocks) if place > 0]
    return _Procedure(
        row.number, row.key, row.text("goal"), [step for step, _ in parsed], [found for _, found in parsed]
    )


def _block(block: object, place: str, number: int) -> tuple[str, dict[str, str]]:
    if not isinstance(block, list) or not all(isinstance(item, dict) for item in block):
        raise BadRowError.at(place, block, "a list of objects")
    rows = [Row(number, item, f"{place}.") for item in block]
    types = [row.choice("type", _TYPES) for row in rows]
    steps = [row.text("step") for row, type_ in zip(rows, types, strict=True) if type_ == "step"]
    if len(steps) != 1:
        raise BadRowError.at(f"{place}.type", types, "exactly one step")
    changes = {
        row.text("event"): row.choice("change", OPTIONS)
        for row, type_ in zip(rows, types, strict=True)
        if type_ == "event"
    }
    return steps[0], changes


def _draft(procedure: _Procedure, step: int, number: int, event: str) -> Draft:
    """What is asked about an event, by its number in the procedure, after a step, counted from 1."""
    lines = goal_and_steps(procedure.goal, procedure.steps[:step])
    return Draft(
        number=procedure.number,
        id=f"{procedure.name}-{step}-{number}",
        relation="causal",
        context="\n".join(lines),
        question=f"Compared with the moment before the latest step, how likely is this event now? {event}",
        options=OPTIONS,
        answers=[procedure.changes[step - 1].get(event, "equally likely")],
        meta={
            "procedure": procedure.name,
            "step": step,
            "steps": len(procedure.steps),
            "event": number,
            "evidence": [lines[0], lines[-1]],
        },
        record_number=False,
    )


CREPE = Source(
    name="crepe",
    format="scq",
    licence="MIT",
    homepage="https://github.com/zharry29/causal_reasoning_of_entities_and_events",
    inputs=(Input("dev", (DEV,), ("dev",)), Input("test", (TEST,), ("test",))),
    splits=_SPLITS,
    read=read,
    notes={
        "rows": "one for each event and step of a procedure, the official scorer's pairs in its order",
        "context": "the goal, and the steps up to the one that is asked about, each on a line of its own",
        "evidence": "the goal and the step that is asked about, which refined contexts keep",
    },
)
