"""CREPE (Zhang et al., Findings of EACL 2023): what does a step of a procedure do to the likelihood of an event?

Each (event, step) pair of the official files is a choice among three labels; only changes are written in them, so an
event that a block does not name is equally likely after its step. Block 0 is the start and is not asked about.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from d2e_sft.data.sample import EventSample, Split
from data_builders.raw.bad_rows import MISSING, BadRowError
from data_builders.raw.fields import choice_field, text_field
from data_builders.raw.reader import RawInput
from data_builders.raw.source import Input, Job, RawFile, Source, SplitRows
from data_builders.text.texts import goal_and_steps

_COMMIT = "90042cafd8d4d0da66be71762df64573d890fbd6"
_URL = f"https://raw.githubusercontent.com/zharry29/causal_reasoning_of_entities_and_events/{_COMMIT}"
_LICENCE = "MIT"

DEV = RawFile(
    name="data_dev_v2.json",
    url=f"{_URL}/data_dev_v2.json",
    commit=_COMMIT,
    sha256="0f5f0b5a6ca3d10e1e8e8b03d03ed364190f9ec89b69776b15e1ada149fd96b1",
    bytes=117_437,
)
TEST = RawFile(
    name="data_test_v2.json",
    url=f"{_URL}/data_test_v2.json",
    commit=_COMMIT,
    sha256="3607d6d4ef7ae596716f234c355e9e4a17f2b67421d7038c30762b85c2bf243a",
    bytes=321_729,
)

OPTIONS = ("more likely", "less likely", "equally likely")
_TYPES = ("step", "entity", "event")
_SPLITS: tuple[Split, ...] = ("dev", "test")


@dataclass(frozen=True)
class _Procedure:
    line: int
    name: str
    goal: str
    steps: list[str]
    changes: list[dict[str, str]]  # after each step: event → change

    @property
    def events(self) -> list[str]:
        return list(dict.fromkeys(event for changes in self.changes for event in changes))


@dataclass(frozen=True)
class _Pair:
    line: int
    procedure: _Procedure
    event: int
    step: int  # counted from 1


def read(job: Job) -> dict[Split, SplitRows]:
    """Build dev (727 rows) and test (1,520 rows)."""
    return {split: _read_split(job.input(split, split)) for split in _SPLITS if job.wants(split)}


def _read_split(raw: RawInput) -> SplitRows:
    procedures = raw.parse(raw.json_members(), _parse)
    pairs = [
        _Pair(procedure.line, procedure, event, step)
        for procedure in procedures
        for step in range(1, len(procedure.steps) + 1)
        for event in range(len(procedure.events))
    ]
    return SplitRows(raw.samples(pairs, lambda pair: _sample(raw, pair)), rows_read=len(pairs))


def _parse(line: int, member: tuple[str, dict[str, Any]]) -> _Procedure:
    name, row = member
    blocks = row.get("steps", MISSING)
    if not isinstance(blocks, list) or len(blocks) < 2:
        raise BadRowError.at("steps", blocks, "the start and at least one step")
    parsed = [_block(block, f"steps.{number}") for number, block in enumerate(blocks) if number > 0]
    return _Procedure(
        line, name, text_field(row, "goal"), [step for step, _ in parsed], [found for _, found in parsed]
    )


def _block(block: object, place: str) -> tuple[str, dict[str, str]]:
    if not isinstance(block, list) or not all(isinstance(item, dict) for item in block):
        raise BadRowError.at(place, block, "a list of objects")
    rows: list[dict[str, Any]] = block
    for row in rows:
        choice_field(f"{place}.type", row.get("type", MISSING), _TYPES)
    steps = [text_field(row, "step", f"{place}.") for row in rows if row["type"] == "step"]
    if len(steps) != 1:
        raise BadRowError.at(f"{place}.type", [row["type"] for row in rows], "exactly one step")
    changes = {
        text_field(row, "event", f"{place}."): choice_field(f"{place}.change", row.get("change", MISSING), OPTIONS)
        for row in rows
        if row["type"] == "event"
    }
    return steps[0], changes


def _sample(raw: RawInput, pair: _Pair) -> EventSample:
    procedure = pair.procedure
    event = procedure.events[pair.event]
    return EventSample(
        id=f"crepe-{raw.split}-{procedure.name}-{pair.step}-{pair.event}",
        dataset="crepe",
        split=raw.split,
        relation="causal",
        format="scq",
        context=goal_and_steps(procedure.goal, procedure.steps[: pair.step]),
        question=f"Compared with the moment before the latest step, how likely is this event now? {event}",
        options=list(OPTIONS),
        answers=[procedure.changes[pair.step - 1].get(event, "equally likely")],
        meta={
            "source": raw.name,
            "procedure": procedure.name,
            "step": pair.step,
            "steps": len(procedure.steps),
            "event": pair.event,
            "licence": _LICENCE,
        },
    )


CREPE = Source(
    name="crepe",
    format="scq",
    licence=_LICENCE,
    homepage="https://github.com/zharry29/causal_reasoning_of_entities_and_events",
    inputs=(Input("dev", (DEV,), ("dev",)), Input("test", (TEST,), ("test",))),
    splits=_SPLITS,
    read=read,
    notes={
        "rows": "one for each event and step of a procedure, the official scorer's pairs in its order",
        "context": "the goal, and the steps up to the one that is asked about",
    },
)
