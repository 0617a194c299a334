"""CREPE's official files, and files of entity states that another model predicted.

An official file has procedures, each with a goal and blocks of typed dictionaries. Block 0 is the start and is not
scored; each later block has one `step` and the changes after it (`entity`, `event`). Only changes are written: an
event without a dictionary in a block is equally likely there. Predicted states are procedure id → step (from 1) →
changes, `more likely` if the attribute holds after the step, `less likely` if it no longer does.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, RootModel, model_validator

from d2e_sft.util.errors import UserError
from eval.systems.files import Row, Text, check_ids, checked, read_json

# The labels as the official scorer numbers them, and their texts.
EQUALLY, LESS, MORE = 0, 1, 2
LABELS = ("equally likely", "less likely", "more likely")
# Section 5.3: the number of states per step that fit the prompt, drawn uniformly.
MOST_A_STEP = 5
_ARTICLES = ("the", "a", "an", "my", "your", "his", "her", "their", "our")
Changes = Sequence[tuple[str, str]]  # (event, change)


@dataclass(frozen=True)
class EntityChange:
    """An attribute of an entity that becomes more or less likely to hold (`change`)."""

    entity: Text
    attribute: Text
    change: str


# Outputs of the official code are gold files with predictions added to the blocks. Fields that must not be empty:
_NEEDED = {"step": ("step",), "entity": ("entity", "attribute"), "event": ("event",), "predicted_event": ("event",)}


class Dictionary(Row):
    """One typed dictionary of a block."""

    type: Literal["step", "entity", "event", "predicted_entity", "predicted_event", "openpi_entity", "multihop"]
    step: str = ""
    entity: str = ""
    attribute: str = ""
    event: str = ""
    change: str | None = None
    event_entity_inference: Any = None

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        needed = _NEEDED.get(self.type, ())
        for name in (*needed, *["change"] * (self.type != "step" and bool(needed))):
            value = getattr(self, name)
            if value is None or (name != "change" and not value.strip()):
                raise ValueError(f"{name} is missing or empty; expected text in a dictionary of type {self.type}")
        return self


class Block(RootModel[tuple[Dictionary, ...]]):
    """A step and the changes after it, each kind in the file's order."""

    @cached_property
    def step(self) -> str:
        """The step's text."""
        return next(row.step for row in self.root if row.type == "step")

    @cached_property
    def entities(self) -> list[EntityChange]:
        """Return the gold changes of entities."""
        rows = [row for row in self.root if row.type == "entity"]
        return [EntityChange(row.entity, row.attribute, row.change or "") for row in rows]

    @cached_property
    def events(self) -> Changes:
        """The gold changes of events."""
        return self._changes("event")

    @cached_property
    def predicted_events(self) -> Changes:
        """The predicted changes of events, in an output file."""
        return self._changes("predicted_event")

    def _changes(self, kind: str) -> Changes:
        return [(row.event, row.change or "") for row in self.root if row.type == kind]


class Procedure(Row):
    """One procedure: `parts` are the start and the blocks of the steps, `raw` is its content in the file.

    `human` are the labels of another annotator, [step][event].
    """

    id: str
    goal: Text
    parts: list[Block] = Field(alias="steps", min_length=2)
    raw: dict[str, Any] = Field(repr=False)
    human: Sequence[Sequence[int]] | None = None

    @model_validator(mode="before")
    @classmethod
    def _any_start(cls, row: Any) -> Any:
        """Accept anything as the start."""
        steps = row.get("steps") if isinstance(row, dict) else None
        return {**row, "steps": [[], *steps[1:]]} if isinstance(steps, list) and steps else row

    @model_validator(mode="after")
    def _one_step_in_each_block(self) -> Self:
        for number, block in enumerate(self.blocks, start=1):
            count = sum(row.type == "step" for row in block.root)
            if count != 1:
                raise ValueError(f"block {number}: got {count} dictionaries of type step; expected exactly one")
        return self

    @property
    def blocks(self) -> Sequence[Block]:
        """The blocks of the steps, without the start."""
        return self.parts[1:]

    @cached_property
    def events(self) -> Sequence[str]:
        """Every event that changes somewhere, in order of appearance."""
        return list(dict.fromkeys(event for block in self.blocks for event, _ in block.events))

    @property
    def steps(self) -> list[str]:
        """Texts of the steps."""
        return [block.step.strip() for block in self.blocks]

    @cached_property
    def pairs(self) -> list[tuple[str, int, str]]:
        """Procedure, step and event of each pair that is scored."""
        return [(self.id, step, event) for step in range(1, len(self.blocks) + 1) for event in self.events]


# By procedure: the changes after each step.
States = Mapping[str, Sequence[Sequence[EntityChange]]]


def official_label(change: str) -> int:
    """Return a change as the official scorer reads it: all but `less likely` is more, even an empty string."""
    return LESS if change == LABELS[LESS] else MORE


def corrected_label(change: str) -> int:
    """Return a change by its meaning, ignoring letter case and blanks; what is neither more nor less is no change."""
    words = change.strip().casefold().split()
    if words[:1] == ["less"]:
        return LESS
    return MORE if words[:1] == ["more"] else EQUALLY


def label_in(changes: Changes, event: str, *, official: bool) -> int:
    """Return the label that a block gives an event; the last of several counts."""
    found = [change for name, change in changes if name == event]
    if not found:
        return EQUALLY
    return official_label(found[-1]) if official else corrected_label(found[-1])


def read_procedures(path: Path) -> list[Procedure]:
    """Read a gold file, or an output file of the official code; UserError if the file is damaged."""
    content: dict[str, dict[str, Any]] = read_json(path, dict[str, dict[str, Any]])
    if not content:
        raise UserError(f"{path}: holds no procedure; expected procedure id → goal and steps")
    rows = {name: {**row, "id": name, "raw": row} for name, row in content.items()}
    return list(checked(dict[str, Procedure], rows, str(path)).values())


def gold_states(procedures: Sequence[Procedure]) -> dict[str, list[list[EntityChange]]]:
    """Return the annotated entity changes, in the file's order."""
    return {procedure.id: [block.entities for block in procedure.blocks] for procedure in procedures}


def _more_or_less(change: EntityChange) -> EntityChange:
    if change.change not in LABELS[1:]:
        raise ValueError(f"change is {change.change!r}; expected {' or '.join(LABELS[1:])}")
    return change


def read_states(path: Path, procedures: Sequence[Procedure]) -> dict[str, list[list[EntityChange]]]:
    """Read predicted states of a split; UserError if the file is damaged, or procedures or steps do not fit."""
    content = read_json(path, dict[str, dict[int, list[Annotated[EntityChange, AfterValidator(_more_or_less)]]]])
    counts = {procedure.id: len(procedure.blocks) for procedure in procedures}
    remedy = "give the states of the split that is read (--set split=dev or test); {} stands for no states"
    check_ids(path, "procedure", content, counts, all_of=remedy)
    for name, steps in content.items():
        if not all(1 <= step <= counts[name] for step in steps):
            raise UserError(
                f"{path}: {name}: got the steps {', '.join(map(str, steps))}; expected 1 to {counts[name]}"
            )
    return {name: [content[name].get(step, []) for step in range(1, count + 1)] for name, count in counts.items()}


def write_states(states: States) -> str:
    """Return the text of a file of predicted states."""
    content = {
        name: {str(number): [vars(change) for change in own] for number, own in enumerate(steps, start=1) if own}
        for name, steps in states.items()
    }
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def fitting_states(
    procedure: Procedure, states: Sequence[Sequence[EntityChange]], seed: int
) -> list[list[EntityChange]]:
    """Return the states that are shown (section 5.3): of entities that an event mentions, at most 5 per step."""
    rng = random.Random(f"{seed}/{procedure.id}")
    chosen = []
    for changes in states:
        fitting = [change for change in changes if any(mentions(event, change.entity) for event in procedure.events)]
        drawn = sorted(rng.sample(range(len(fitting)), min(MOST_A_STEP, len(fitting))))
        chosen.append([fitting[place] for place in drawn])
    return chosen


def mentions(event: str, entity: str) -> bool:
    """Return whether the event's sentence holds the entity's words in a row, ignoring article and letter case."""
    words, sentence = ([*re.findall(r"\w+", text.casefold())] for text in (entity, event))
    if len(words) > 1 and words[0] in _ARTICLES:
        words = words[1:]
    return bool(words) and any(sentence[i : i + len(words)] == words for i in range(len(sentence)))
