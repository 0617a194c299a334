"""CREPE (Zhang et al., Findings of EACL 2023): what does a step of a procedure do to the likelihood of an event?

Each (event, step) pair is a choice among three labels: 727 rows of dev and 1,520 of the test. The official files list
changes only, so an event that a step does not name is equally likely after it. Block 0 is the start.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, Field, field_validator

from data_builders.raw.facts import source
from data_builders.raw.reader import RawInput
from data_builders.raw.row import Draft
from data_builders.sources.filters import reader
from data_builders.sources.rows import Form, RawObject, RawRow, Text
from data_builders.text.texts import goal_and_steps

_Change = Literal["more likely", "less likely", "equally likely"]


class _Step(RawObject):
    type: Literal["step"]
    step: Text


class _Entity(RawObject):
    type: Literal["entity"]


class _Event(RawObject):
    type: Literal["event"]
    event: Text
    change: _Change


_Item = Annotated[_Step | _Entity | _Event, Field(discriminator="type")]


def _one_step(block: list[_Item]) -> list[_Item]:
    if sum(item.type == "step" for item in block) != 1:
        raise ValueError("expected exactly one step")
    return block


class _Procedure(RawRow):
    goal: Text
    steps: list[Annotated[list[_Item], AfterValidator(_one_step)]] = Field(min_length=1)

    @field_validator("steps", mode="before")
    @classmethod
    def _without_start(cls, blocks: Any) -> Any:
        return blocks[1:] if isinstance(blocks, list) else blocks


def _drafts(procedure: _Procedure) -> Iterator[Draft]:
    """One draft for each step and event, with the change of the event after the step."""
    steps = [item.step for block in procedure.steps for item in block if isinstance(item, _Step)]
    lines = goal_and_steps(procedure.goal, steps)
    changes = [{item.event: item.change for item in block if isinstance(item, _Event)} for block in procedure.steps]
    events = list(dict.fromkeys(event for found in changes for event in found))
    for step, changed in enumerate(changes, start=1):
        for number, event in enumerate(events):
            yield Draft(
                number=procedure.number,
                id=f"{procedure.key}-{step}-{number}",
                relation="causal",
                context="\n".join(lines[: step + 1]),
                question=f"Compared with the moment before the latest step, how likely is this event now? {event}",
                options=get_args(_Change),
                answers=[changed.get(event, "equally likely")],
                meta={
                    "procedure": procedure.key,
                    "step": step,
                    "steps": len(steps),
                    "event": number,
                    "evidence": [lines[0], lines[step]],
                },
                record_number=False,
            )


CREPE = source(__file__, reader(Form(_Procedure, _drafts, RawInput.json_members)))
