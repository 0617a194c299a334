"""CREPE's files: procedures, entity states that another model predicted, and predictions, official or flat.

An official file has procedures, each with a goal and blocks of typed dictionaries. Block 0 is the start and is not
scored; each later block has one `step` and the changes after it (`entity`, `event`). Only changes are written: an
event without a dictionary in a block is equally likely there. Predicted states are procedure id → step (from 1) →
changes, `more likely` if the attribute holds after the step, `less likely` if it no longer does.

The official code adds `predicted_event` (and `predicted_entity`) dictionaries to the blocks of the gold file, so one
file holds both. Ours are written that way too, with a mark in each procedure, so that a file without any predicted
change is recognised. A file in the shape of the gold file whose `event` dictionaries are the predictions is also read.
"""

import copy
import itertools
import json
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, RootModel, model_validator

from d2e_sft.util.errors import UserError
from eval.systems.labels import Missing
from eval.systems.reading import (
    FlatRow,
    GoldRow,
    StepNumber,
    Text,
    check_ids,
    checked,
    is_flat,
    read_json,
    read_lines,
    read_unique,
)

# The labels as the official scorer numbers them, and their texts.
EQUALLY, LESS, MORE = 0, 1, 2
LABELS = ("equally likely", "less likely", "more likely")
# Section 5.3: the number of states per step that fit the prompt, drawn uniformly.
MOST_A_STEP = 5
_ARTICLES = ("the", "a", "an", "my", "your", "his", "her", "their", "our")
Changes = Mapping[str, str]  # event → change; without one it is equally likely


@dataclass(frozen=True)
class EntityChange:
    """An attribute of an entity that becomes more or less likely to hold (`change`)."""

    entity: Text
    attribute: Text
    change: str


# Outputs of the official code are gold files with predictions added to the blocks. Fields that must not be empty:
_NEEDED = {"step": ("step",), "entity": ("entity", "attribute"), "event": ("event",), "predicted_event": ("event",)}


class Dictionary(GoldRow):
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


class OfficialBlock(RootModel[tuple[Dictionary, ...]]):
    """A step and the changes after it, each kind in the file's order."""

    @cached_property
    def step(self) -> str:
        return next(row.step for row in self.root if row.type == "step")

    @cached_property
    def entities(self) -> list[EntityChange]:
        rows = [row for row in self.root if row.type == "entity"]
        return [EntityChange(row.entity, row.attribute, row.change or "") for row in rows]

    @cached_property
    def events(self) -> Changes:
        return self.changes("event")

    def changes(self, kind: Literal["event", "predicted_event"]) -> Changes:
        """The changes of events, those of the gold file or predicted ones; the last of several counts."""
        return {row.event: row.change or "" for row in self.root if row.type == kind}


class CrepeProcedure(GoldRow):
    """One procedure: `parts` are the start and the blocks of the steps, `raw` is its content in the file.

    `human` are the changes of another annotator, after each step.
    """

    id: str
    goal: Text
    parts: list[OfficialBlock] = Field(alias="steps", min_length=2)
    raw: dict[str, Any] = Field(repr=False)
    human: Sequence[Changes] | None = None

    @model_validator(mode="before")
    @classmethod
    def _any_start(cls, row: Any) -> Any:
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
    def blocks(self) -> Sequence[OfficialBlock]:
        """The blocks of the steps, without the start."""
        return self.parts[1:]

    @cached_property
    def events(self) -> Sequence[str]:
        """Every event that changes somewhere, in order of appearance."""
        return list(dict.fromkeys(event for block in self.blocks for event in block.events))

    @property
    def steps(self) -> list[str]:
        return [block.step.strip() for block in self.blocks]

    @cached_property
    def pairs(self) -> list[tuple[str, int, str]]:
        """Procedure, step and event of each pair that is scored."""
        return [(self.id, step, event) for step in range(1, len(self.blocks) + 1) for event in self.events]


# By procedure: the changes after each step.
States = Mapping[str, Sequence[Sequence[EntityChange]]]


def label_of(change: str | None, *, official: bool) -> int:
    """Return a change as a label, None as no change: officially all but `less likely` is more, even an empty string.

    Corrected, its first word counts in any letter case, and what is neither more nor less is no change.
    """
    if change is None:
        return EQUALLY
    if official:
        return LESS if change == LABELS[LESS] else MORE
    return {"less": LESS, "more": MORE}.get(" ".join(change.casefold().split()[:1]), EQUALLY)


def read_procedures(path: Path) -> list[CrepeProcedure]:
    """Read a gold file, or an output file of the official code; UserError if the file is damaged."""
    content: dict[str, dict[str, Any]] = read_json(path, dict[str, dict[str, Any]])
    if not content:
        raise UserError(f"{path}: holds no procedure; expected procedure id → goal and steps")
    rows = {name: {**row, "id": name, "raw": row} for name, row in content.items()}
    return list(checked(dict[str, CrepeProcedure], rows, str(path)).values())


def _more_or_less(change: EntityChange) -> EntityChange:
    if change.change not in LABELS[1:]:
        raise ValueError(f"change is {change.change!r}; expected {' or '.join(LABELS[1:])}")
    return change


def read_states(path: Path, procedures: Sequence[CrepeProcedure]) -> dict[str, list[list[EntityChange]]]:
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


def fitting_states(
    procedure: CrepeProcedure, states: Sequence[Sequence[EntityChange]], seed: int
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


ReadAs = Literal["auto", "predicted", "event"]
# A key of each procedure in our files; the official script reads only the goal and the steps.
_MARK = {"predictions": "marked"}
_UNMARKED = "nothing is marked as predicted: the event dictionaries were read as the predictions"
_UNMARKED_GOLD = (
    "nothing is marked as predicted, and the events are the gold ones, so they score as perfect predictions; for an "
    "official output without a predicted change, add --set read=predicted"
)


@dataclass(frozen=True)
class CrepePredictions:
    """What is predicted for some procedures.

    Attributes:
        changes: by procedure, the changes of events after each step.
        title: for tables.
        unread: number of pairs whose answer could not be read; None if the file cannot say so.
        facts: what scores report about the file.
        notes: remarks for the table; `warnings` go to stderr.
        procedures: the file's own content, if it is an official output.
        entities: by procedure, the entity changes that the model wrote after each step.
    """

    changes: Mapping[str, Sequence[Changes]]
    title: str
    unread: int | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()
    warnings: Sequence[str] = ()
    procedures: Sequence[CrepeProcedure] = ()
    entities: Mapping[str, Sequence[Sequence[EntityChange]]] = field(default_factory=dict)


def read_predictions(path: Path, gold: Sequence[CrepeProcedure], read: ReadAs, missing: Missing) -> CrepePredictions:
    """Read predictions for the gold procedures, official or flat; UserError if the file is damaged or does not fit.

    Args:
        read: which dictionaries hold the predictions. auto takes `predicted_event` if a file has some or is one of
            ours, else its `event` dictionaries. An official output without any predicted change, such as the majority
            baseline, looks like the gold file and needs `predicted`.
        missing: what to do about procedures that the file lacks.
    """
    known = {procedure.id: procedure for procedure in gold}
    flat = is_flat(path)
    lines, unread = _read_flat(path, known, missing) if flat else ({}, None)
    outputs = {} if flat else {procedure.id: procedure for procedure in read_procedures(path)}
    remedy = "predict all, or score only those that are there: --set missing=leave_out" if missing == "error" else ""
    check_ids(path, "procedure", lines or outputs, known, all_of=remedy)
    count = len(gold) - len(lines or outputs)
    notes = [f"{count} of {len(gold)} procedures have no predictions and are left out"] if count else []
    facts = {"read": "predicted", "strangers": 0, "missing": count, "other_gold": 0}
    if flat:
        return CrepePredictions(lines, f"CREPE, {path.name}", unread, facts, notes)
    pairs = [(outputs[name], procedure) for name, procedure in known.items() if name in outputs]
    for output, truth in pairs:
        if output.steps != truth.steps:
            raise UserError(
                f"{path}, procedure {output.id!r}: has the {len(output.steps)} steps {output.steps[:2]!r}…; expected "
                f"the gold file's {len(truth.steps)} {truth.steps[:2]!r}…",
                remedy="name the gold file of the same split, and keep its blocks and step texts as they are",
            )
    marked = any(
        _MARK.items() <= output.raw.items() or any(block.changes("predicted_event") for block in output.blocks)
        for output, _ in pairs
    )
    facts["read"] = read if read != "auto" else "predicted" if marked else "event"
    kind: Any = "predicted_event" if facts["read"] == "predicted" else "event"
    changes = {output.id: [block.changes(kind) for block in output.blocks] for output, _ in pairs}
    if strangers := sum(
        event not in truth.events for _, truth in pairs for step in changes[truth.id] for event in step
    ):
        notes = [f"{strangers} predicted changes are of events that are not in the gold file", *notes]
    if read == "auto" and not marked:
        is_gold = all(
            a.events == b.events for pair in pairs for a, b in zip(pair[0].blocks, pair[1].blocks, strict=True)
        )
        notes = [_UNMARKED_GOLD if is_gold else _UNMARKED, *notes]
    other_gold = sum(itertools.starmap(_differing, pairs)) if kind == "predicted_event" else 0
    warning = (
        f"{path} carries other gold than --gold: {other_gold:,} of {sum(len(truth.pairs) for _, truth in pairs):,} "
        "(event, step) pairs have another label there. These scores are against --gold; the official script, which "
        f"reads only this file, gives others. To score against its own gold: --gold {path}"
    )
    return CrepePredictions(
        changes,
        f"CREPE, {path.name}",
        facts={**facts, "strangers": strangers, "other_gold": other_gold},
        notes=notes,
        warnings=[warning] if other_gold else [],
        procedures=[output for output, _ in pairs],
    )


def _differing(output: CrepeProcedure, truth: CrepeProcedure) -> int:
    """Return the number of (event, step) pairs that two gold annotations label differently."""
    return sum(
        label_of(a.events.get(event), official=True) != label_of(b.events.get(event), official=True)
        for a, b in zip(output.blocks, truth.blocks, strict=True)
        for event in {*truth.events, *output.events}
    )


class CrepeLine(FlatRow):
    """One line of a flat file; a change of null could not be read."""

    procedure: str
    step: StepNumber
    event: str
    change: Literal["equally likely", "less likely", "more likely"] | None

    @property
    def pair(self) -> str:
        return f"{self.procedure}, step {self.step}, {self.event}"


def _read_flat(
    path: Path, known: Mapping[str, CrepeProcedure], missing: Missing
) -> tuple[dict[str, list[dict[str, str]]], int]:
    """Return the changes of the procedures that have lines, and the number of pairs that could not be read.

    A null is equally likely, as in the official code. A procedure that has a line needs a line for each of its pairs.
    """
    lines: dict[str, CrepeLine] = read_unique(read_lines(path, CrepeLine), "pair")
    names = dict.fromkeys(line.procedure for line in lines.values())
    check_ids(path, "procedure", names, known)

    def pairs_of(procedures: Iterable[str]) -> list[str]:
        return [f"{name}, step {step}, {event}" for id_ in procedures for name, step, event in known[id_].pairs]

    pairs = pairs_of(names)
    check_ids(path, "pair", lines, pairs)
    if missing == "error" and not lines.keys() >= {*pairs}:
        pairs = pairs_of(known)  # so that all missing ones are counted
    check_ids(path, "pair", lines, pairs, all_of="write all lines with --template FILE")
    if not lines:
        raise UserError(f"{path}: holds no prediction", remedy="write all lines with --template FILE")
    changes: dict[str, list[dict[str, str]]] = {name: [{} for _ in known[name].blocks] for name in names}
    for line in lines.values():
        if line.change is not None and line.change != LABELS[EQUALLY]:
            changes[line.procedure][line.step - 1][line.event] = line.change
    return changes, sum(line.change is None for line in lines.values())


def predictions_text(gold: Sequence[CrepeProcedure], predicted: CrepePredictions) -> str:
    """Return the official output file: the gold blocks with predictions added; equally likely is left out."""
    content = {}
    for procedure in gold:
        raw: dict[str, Any] = copy.deepcopy(dict(procedure.raw))
        entities = predicted.entities.get(procedure.id) or [()] * len(procedure.blocks)
        for block, changes, written in zip(raw["steps"][1:], predicted.changes[procedure.id], entities, strict=True):
            block[:] = [row for row in block if not row["type"].startswith("predicted_")]
            block += [{"type": "predicted_entity", **vars(change)} for change in written]
            block += [
                {"type": "predicted_event", "event": event, "change": changes[event]}
                for event in procedure.events
                if event in changes
            ]
        content[procedure.id] = raw | _MARK
    return json.dumps(content, indent=4, ensure_ascii=False) + "\n"
