"""Files of predictions for CREPE, in the format of the official outputs or flat.

The official code adds `predicted_event` (and `predicted_entity`) dictionaries to the blocks of the gold file, so one
file holds both. Ours are written that way too, with a mark in each procedure, so that a file without any predicted
change is recognised. A file in the shape of the gold file whose `event` dictionaries are the predictions is also read.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from d2e_sft.util.errors import UserError, did_you_mean
from eval.systems.crepe.gold import EQUALLY, LABELS, EntityChange, Procedure, label_in, read_procedures
from eval.systems.files import check_ids
from eval.systems.flat.lines import FlatRow, StepNumber, is_flat, read_lines
from eval.systems.labelled import Missing

ReadAs = Literal["auto", "predicted", "event"]
Labels = Mapping[str, Sequence[Sequence[int]]]  # by procedure, [step][event]
# A key of each procedure in our files; the official script reads only the goal and the steps.
_MARK = {"predictions": "marked"}
_UNMARKED = "nothing is marked as predicted: the event dictionaries were read as the predictions"
_UNMARKED_GOLD = (
    "nothing is marked as predicted, and the events are the gold ones, so they score as perfect predictions; for an "
    "official output without a predicted change, add --set read=predicted"
)


@dataclass(frozen=True)
class Predictions:
    """What is predicted for some procedures.

    Attributes:
        official: labels as the official scorer reads them.
        corrected: labels by the meaning of their texts.
        title: for tables.
        unread: number of pairs whose answer could not be read; None if the file cannot say so.
        facts: what scores report about the file.
        notes: remarks for the table; `warnings` go to stderr.
        procedures: the file's own content, if it is an official output.
        entities: by procedure, the entity changes that the model wrote after each step.
    """

    official: Labels
    corrected: Labels
    title: str
    unread: int | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()
    warnings: Sequence[str] = ()
    procedures: Sequence[Procedure] = ()
    entities: Mapping[str, Sequence[Sequence[EntityChange]]] = field(default_factory=dict)


def read_predictions(path: Path, gold: Sequence[Procedure], read: ReadAs, missing: Missing) -> Predictions:
    """Read predictions for the gold procedures, in the official format or flat.

    Args:
        read: which dictionaries hold the predictions. auto takes `predicted_event` if a file has some or is one of
            ours, else its `event` dictionaries. An official output without any predicted change, such as the majority
            baseline, looks like the gold file and needs `predicted`.
        missing: what to do about procedures that the file lacks.

    Raises:
        UserError: the file is damaged, or does not fit the gold file.
    """
    known = {procedure.id: procedure for procedure in gold}
    flat = is_flat(path)
    labels, unread = read_flat(path, known) if flat else ({}, None)
    found = {} if flat else {procedure.id: procedure for procedure in read_procedures(path)}
    remedy = "predict all, or score only those that are there: --set missing=leave_out" if missing == "error" else ""
    check_ids(path, "procedure", labels or found, known, all_of=remedy)
    count = len(gold) - len(labels or found)
    lacking = [f"{count} of {len(gold)} procedures have no predictions and are left out"] if count else []
    title = f"CREPE, {path.name}"
    if flat:
        facts = {"read": "predicted", "strangers": 0, "missing": count, "other_gold": 0}
        return Predictions(labels, labels, title, unread, facts, lacking)
    pairs = [(found[name], one) for name, one in known.items() if name in found]
    for own, one in pairs:
        if own.steps != one.steps:
            raise UserError(
                f"{path}, procedure {own.id!r}: has the {len(own.steps)} steps {own.steps[:2]!r}…; expected the gold "
                f"file's {len(one.steps)} {one.steps[:2]!r}…",
                remedy="name the gold file of the same split, and keep its blocks and step texts as they are",
            )
    return _official(path, title, pairs, read, count, lacking)


def _official(
    path: Path, title: str, pairs: Sequence[tuple[Procedure, Procedure]], read: ReadAs, missing: int, notes: list[str]
) -> Predictions:
    """Read the predictions of pairs of a predicted and a gold procedure."""
    marked = any(_MARK.items() <= own.raw.items() or any(b.predicted_events for b in own.blocks) for own, _ in pairs)
    chosen = read if read != "auto" else "predicted" if marked else "event"
    changes = {
        own.id: [block.predicted_events if chosen == "predicted" else block.events for block in own.blocks]
        for own, _ in pairs
    }
    official, corrected = (
        {
            one.id: [[label_in(own, event, official=reading) for event in one.events] for own in changes[one.id]]
            for _, one in pairs
        }
        for reading in (True, False)
    )
    strangers = sum(event not in one.events for _, one in pairs for block in changes[one.id] for event, _ in block)
    other = sum(_differing(*pair) for pair in pairs) if chosen == "predicted" else 0
    if strangers:
        notes = [f"{strangers} predicted changes are of events that are not in the gold file", *notes]
    if read == "auto" and not marked:
        notes = [_UNMARKED_GOLD if all(map(_same_events, pairs)) else _UNMARKED, *notes]
    warning = (
        f"{path} carries other gold than --gold: {other:,} of {sum(len(one.pairs) for _, one in pairs):,} (event, "
        "step) pairs have another label there. These scores are against --gold; the official script, which reads only "
        f"this file, gives others. To score against its own gold: --gold {path}"
    )
    return Predictions(
        official,
        corrected,
        title,
        facts={"read": chosen, "strangers": strangers, "missing": missing, "other_gold": other},
        notes=notes,
        warnings=[warning] if other else [],
        procedures=[own for own, _ in pairs],
    )


def _same_events(pair: tuple[Procedure, Procedure]) -> bool:
    return all(a.events == b.events for a, b in zip(pair[0].blocks, pair[1].blocks, strict=True))


def _differing(own: Procedure, gold: Procedure) -> int:
    """Return the number of (event, step) pairs that two gold annotations label differently."""
    events = dict.fromkeys((*gold.events, *own.events))
    return sum(
        label_in(a.events, event, official=True) != label_in(b.events, event, official=True)
        for a, b in zip(own.blocks, gold.blocks, strict=True)
        for event in events
    )


class PredictedLine(FlatRow):
    """One line of a flat file; a change of null could not be read."""

    procedure: str
    step: StepNumber
    event: str
    change: Literal["equally likely", "less likely", "more likely"] | None


def read_flat(path: Path, known: Mapping[str, Procedure]) -> tuple[Labels, int]:
    """Return the labels of the procedures that have lines, and the number of pairs that could not be read.

    A null is equally likely, as in the official code. Raises UserError if a line is damaged or about no pair of the
    gold file, or a procedure lacks a line.
    """
    found: dict[tuple[str, int, str], str | None] = {}
    for place, line in read_lines(path, PredictedLine):
        pair = line.procedure, line.step, line.event
        if pair in found:
            raise UserError(f"{place}: step {pair[1]} and event {pair[2]!r} of {pair[0]!r} are predicted twice")
        if line.procedure not in known:
            near = did_you_mean(line.procedure, known)
            raise UserError(f"{place}: procedure {line.procedure!r} is not in the gold file.{near}")
        procedure = known[line.procedure]
        if pair not in procedure.pairs:
            expected = f"step 1 to {len(procedure.blocks)} and one of {', '.join(procedure.events) or 'no events'}"
            raise UserError(f"{place}: got step {line.step} and event {line.event!r}; expected {expected}")
        found[pair] = line.change
    kept = [known[name] for name in dict.fromkeys(name for name, *_ in found)]
    lacking = [pair for one in kept for pair in one.pairs if pair not in found]
    if lacking or not found:
        missing = f"step {lacking[0][1]} and event {lacking[0][2]!r} of {lacking[0][0]!r}" if lacking else "any pair"
        raise UserError(
            f"{path}: lacks {missing} ({len(lacking):,} such); expected a line for each pair of a procedure",
            remedy="write all lines with --template FILE",
        )
    labels = {
        one.id: [
            [LABELS.index(found[one.id, step, event] or LABELS[EQUALLY]) for event in one.events]
            for step in range(1, len(one.blocks) + 1)
        ]
        for one in kept
    }
    return labels, sum(change is None for change in found.values())


def write_predictions(
    procedures: Sequence[Procedure], labels: Labels, entities: Mapping[str, Sequence[Sequence[EntityChange]]]
) -> str:
    """Return the official output file: the gold blocks with predictions added; equally likely is left out.

    `entities` are the entity changes that the model wrote after each step, by procedure; may be empty.
    """
    content = {}
    for procedure in procedures:
        raw: dict[str, Any] = copy.deepcopy(dict(procedure.raw))
        for number, changes in enumerate(labels[procedure.id]):
            block = [row for row in raw["steps"][number + 1] if not row["type"].startswith("predicted_")]
            written = entities.get(procedure.id)
            block += [{"type": "predicted_entity", **vars(change)} for change in (written[number] if written else ())]
            block += [
                {"type": "predicted_event", "event": event, "change": LABELS[label]}
                for event, label in zip(procedure.events, changes, strict=True)
                if label != EQUALLY
            ]
            raw["steps"][number + 1] = block
        content[procedure.id] = raw | _MARK
    return json.dumps(content, indent=4, ensure_ascii=False) + "\n"
