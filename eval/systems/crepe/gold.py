"""CREPE's official files: an object of procedures, each with a goal and blocks of typed dictionaries.

Block 0 is the start and is not scored; each later block has one `step` and the changes after it (`entity`, `event`).
Only changes are written: an event without a dictionary in a block is equally likely there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from d2e_sft.util.errors import UserError
from eval.systems.crepe.labels import EQUALLY, corrected_label, official_label
from eval.systems.json_file import expect_list, expect_object, expect_text, read_json, shown

# Outputs of the official code are gold files with what was predicted added to the blocks.
TYPES = ("step", "entity", "event", "predicted_entity", "predicted_event", "openpi_entity", "multihop")


@dataclass(frozen=True)
class EntityChange:
    """An attribute of an entity that becomes more or less likely to hold (`change`)."""

    entity: str
    attribute: str
    change: str


@dataclass(frozen=True)
class Block:
    """A step and the changes after it, each kind in the file's order.

    Attributes:
        events: (event, change).
        predicted_events: the same of an output file.
    """

    step: str
    entities: tuple[EntityChange, ...] = ()
    events: tuple[tuple[str, str], ...] = ()
    predicted_events: tuple[tuple[str, str], ...] = ()

    def official(self, event: str) -> int:
        """The event's gold label as the official scorer reads it; of several dictionaries the last counts."""
        return label_in(self.events, event, official=True)

    def corrected(self, event: str) -> int:
        """The event's gold label by the meaning of its change."""
        return label_in(self.events, event, official=False)


@dataclass(frozen=True)
class Procedure:
    """One procedure.

    Attributes:
        blocks: of the steps; the start is left out.
        events: every event that changes somewhere, in order of appearance.
        raw: its content in the file.
    """

    id: str
    goal: str
    blocks: tuple[Block, ...]
    events: tuple[str, ...]
    raw: Mapping[str, Any] = field(repr=False, compare=False, default_factory=dict)

    @property
    def steps(self) -> list[str]:
        """Texts of the steps."""
        return [block.step.strip() for block in self.blocks]

    @property
    def pairs(self) -> int:
        """Number of (event, step) pairs, which are what is scored."""
        return len(self.blocks) * len(self.events)


def label_in(changes: tuple[tuple[str, str], ...], event: str, *, official: bool) -> int:
    """The label that a block gives an event; the last of several counts."""
    found = [change for name, change in changes if name == event]
    if not found:
        return EQUALLY
    return official_label(found[-1]) if official else corrected_label(found[-1])


def read_procedures(path: Path) -> list[Procedure]:
    """Read a gold file, or an output file of the official code.

    Raises:
        UserError: the file is damaged; file, place, value and expectation are named.
    """
    content = expect_object(read_json(path), str(path))
    if not content:
        raise UserError(f"{path}: holds no procedure; expected procedure id → goal and steps")
    return [_procedure(name, value, f"{path}, procedure {name!r}") for name, value in content.items()]


def _procedure(name: str, value: Any, place: str) -> Procedure:
    row = expect_object(value, place)
    blocks = expect_list(row.get("steps"), f"{place}, steps")
    if len(blocks) < 2:
        raise UserError(f"{place}, steps: got {len(blocks)} block(s); expected the start and at least one step")
    parsed = [_block(block, f"{place}, block {number}") for number, block in enumerate(blocks) if number > 0]
    events = dict.fromkeys(event for block in parsed for event, _ in block.events)
    return Procedure(name, expect_text(row, "goal", place), tuple(parsed), tuple(events), row)


def _block(value: Any, place: str) -> Block:
    rows = [expect_object(row, place) for row in expect_list(value, place)]
    for row in rows:
        if row.get("type") not in TYPES:
            raise UserError(f"{place}: type: got {shown(row.get('type'))}; expected one of {', '.join(TYPES)}")
    steps = [expect_text(row, "step", place) for row in rows if row["type"] == "step"]
    if len(steps) != 1:
        raise UserError(f"{place}: got {len(steps)} dictionaries of type step; expected exactly one")
    return Block(
        steps[0],
        tuple(_entity(row, place) for row in rows if row["type"] == "entity"),
        tuple(_event(row, place) for row in rows if row["type"] == "event"),
        tuple(_event(row, place) for row in rows if row["type"] == "predicted_event"),
    )


def _entity(row: dict[str, Any], place: str) -> EntityChange:
    entity, attribute = (expect_text(row, name, place) for name in ("entity", "attribute"))
    return EntityChange(entity, attribute, expect_text(row, "change", place, empty=True))


def _event(row: dict[str, Any], place: str) -> tuple[str, str]:
    return expect_text(row, "event", place), expect_text(row, "change", place, empty=True)
