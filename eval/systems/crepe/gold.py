"""CREPE's official files, and files of entity states that another model predicted.

An official file is an object of procedures, each with a goal and blocks of typed dictionaries. Block 0 is the start
and is not scored; each later block has one `step` and the changes after it (`entity`, `event`). Only changes are
written: an event without a dictionary in a block is equally likely there.

A file of predicted states is an object: procedure id → step → list of changes.

    {"1": {"2": [{"entity": "the pan", "attribute": "hot", "change": "more likely"}]}}

Steps count from 1; a step without changes may be left out. `change` is `more likely` (the attribute holds after the
step) or `less likely` (it no longer does).
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from d2e_sft.util.errors import UserError
from eval.systems.json_file import expect_list, expect_object, expect_text, read_json, shown

# The labels as the official scorer numbers them, and the texts they stand in.
EQUALLY, LESS, MORE = 0, 1, 2


LABELS = ("equally likely", "less likely", "more likely")
# Outputs of the official code are gold files with what was predicted added to the blocks.
TYPES = ("step", "entity", "event", "predicted_entity", "predicted_event", "openpi_entity", "multihop")
# Section 5.3: so many states a step fit the prompt, drawn uniformly.
MOST_A_STEP = 5
_CHANGES = (LABELS[MORE], LABELS[LESS])
_ARTICLES = ("the", "a", "an", "my", "your", "his", "her", "their", "our")


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


# By procedure: the changes after each step.
States = Mapping[str, Sequence[Sequence[EntityChange]]]


def official_label(change: str) -> int:
    """A change as the official scorer reads it: whatever is not exactly `less likely` counts as more.

    That holds for the empty string and for `equally likely`, too.
    """
    return LESS if change == LABELS[LESS] else MORE


def corrected_label(change: str) -> int:
    """A change by its meaning: letter case and blanks aside, what is neither more nor less is no change."""
    words = change.strip().casefold().split()
    if words[:1] == ["less"]:
        return LESS
    return MORE if words[:1] == ["more"] else EQUALLY


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


def gold_states(procedures: Sequence[Procedure]) -> dict[str, list[tuple[EntityChange, ...]]]:
    """The annotated entity changes, in the file's order."""
    return {procedure.id: [block.entities for block in procedure.blocks] for procedure in procedures}


def read_states(path: Path, procedures: Sequence[Procedure]) -> dict[str, list[list[EntityChange]]]:
    """Read a file of predicted states for the procedures of a split.

    Raises:
        UserError: the file is damaged, lacks a procedure, or names a procedure or step that there is not.
    """
    content = expect_object(read_json(path), str(path))
    known = {procedure.id: procedure for procedure in procedures}
    _refuse_other_names(path, content, known)
    return {
        name: _steps(expect_object(content[name], f"{path}, procedure {name!r}"), procedure, path)
        for name, procedure in known.items()
    }


def write_states(states: States) -> str:
    """The content of such a file."""
    content = {
        name: {
            str(number): [vars(change) for change in changes]
            for number, changes in enumerate(steps, start=1)
            if changes
        }
        for name, steps in states.items()
    }
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def fitting_states(
    procedure: Procedure, states: Sequence[Sequence[EntityChange]], seed: int
) -> list[list[EntityChange]]:
    """What of the predicted states is shown (section 5.3): entities that an event mentions, at most 5 a step."""
    rng = random.Random(f"{seed}/{procedure.id}")
    chosen = []
    for changes in states:
        fitting = [change for change in changes if any(mentions(event, change.entity) for event in procedure.events)]
        drawn = sorted(rng.sample(range(len(fitting)), min(MOST_A_STEP, len(fitting))))
        chosen.append([fitting[place] for place in drawn])
    return chosen


def mentions(event: str, entity: str) -> bool:
    """Whether the event's sentence holds the entity's words in a row, article and letter case aside."""
    words, sentence = ([*re.findall(r"\w+", text.casefold())] for text in (entity, event))
    if len(words) > 1 and words[0] in _ARTICLES:
        words = words[1:]
    return bool(words) and any(sentence[i : i + len(words)] == words for i in range(len(sentence)))


def _refuse_other_names(path: Path, content: dict[str, Any], known: Mapping[str, Procedure]) -> None:
    for what, names in (
        ("is not in this split", [name for name in content if name not in known]),
        ("is missing", [name for name in known if name not in content]),
    ):
        if names:
            raise UserError(
                f"{path}: procedure {names[0]!r} {what} ({len(names)} such); expected states for each of the split's "
                f"{len(known)} procedures",
                remedy="give the states of the split that is read (--set split=dev or test); {} stands for no states",
            )


def _steps(row: dict[str, Any], procedure: Procedure, path: Path) -> list[list[EntityChange]]:
    count = len(procedure.blocks)
    for number in row:
        if not (number.isdecimal() and 1 <= int(number) <= count):
            raise UserError(
                f"{path}, procedure {procedure.id!r}: step {number!r}: got no step of it; expected 1 to {count}"
            )
    steps: list[list[EntityChange]] = [[] for _ in range(count)]
    for number, changes in row.items():
        place = f"{path}, procedure {procedure.id!r}, step {number}"
        steps[int(number) - 1] = [_change(expect_object(item, place), place) for item in expect_list(changes, place)]
    return steps


def _change(row: dict[str, Any], place: str) -> EntityChange:
    if row.get("change") not in _CHANGES:
        raise UserError(f"{place}: change: got {shown(row.get('change'))}; expected {' or '.join(_CHANGES)}")
    return EntityChange(expect_text(row, "entity", place), expect_text(row, "attribute", place), row["change"])
