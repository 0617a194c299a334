"""Files of predictions for CREPE, in the format of the official outputs or flat.

The official code adds `predicted_event` (and `predicted_entity`) dictionaries to the blocks of the gold file, so one
file holds both. Ours are written that way, and say so in each procedure, so that one without a predicted change is
known for what it is. A file in the shape of the gold file whose `event` dictionaries are the predictions is read, too.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from d2e_sft.util.errors import UserError
from eval.systems.crepe.gold import EQUALLY, LABELS, EntityChange, Procedure, label_in, read_procedures
from eval.systems.flat import crepe as flat
from eval.systems.flat.lines import is_flat

ReadAs = Literal["auto", "predicted", "event"]
Missing = Literal["error", "leave_out"]
# A key of each procedure in our files; the official script reads the goal and the steps alone.
_MARK = {"predictions": "marked"}


@dataclass(frozen=True)
class Predicted:
    """The labels that a file predicts for one procedure, as [step][event].

    Attributes:
        official: as the official scorer reads them.
        corrected: by the meaning of their texts.
    """

    official: Sequence[Sequence[int]]
    corrected: Sequence[Sequence[int]]


@dataclass(frozen=True)
class PredictionFile:
    """What a file predicts.

    Attributes:
        procedures: id → labels; in the gold file's order.
        read: which dictionaries were read.
        same_events: nothing is marked as predicted, and its events are those of the gold file.
        strangers: predicted changes of events that the gold file has not; the official scorer passes them over.
        other_gold: of the gold file's (event, step) pairs those that the file's own gold labels otherwise; 0 where its
            events are the predictions.
        pairs: of the procedures that are predicted.
        unread: of a flat file the pairs whose answer could not be read; None of other files, which cannot say so.
    """

    procedures: dict[str, Predicted]
    read: Literal["predicted", "event"]
    same_events: bool
    strangers: int
    other_gold: int
    pairs: int
    unread: int | None = None


def read_predictions(path: Path, gold: Sequence[Procedure], read: ReadAs, missing: Missing) -> PredictionFile:
    """Read predictions for the gold procedures, in the official format or flat.

    Args:
        read: which dictionaries hold the predictions; auto takes `predicted_event` where a file has some or is one of
            ours, else its `event` dictionaries. So an official output without any predicted change (such is the
            official majority baseline) has to be read as `predicted`: it cannot be told from the gold file.
        missing: what to do about procedures that the file lacks.

    Raises:
        UserError: the file is damaged, or does not fit the gold file.
    """
    listed, unread = flat.read_flat(path, gold) if is_flat(path) else (read_procedures(path), None)
    read = read if unread is None else "predicted"
    found = {procedure.id: procedure for procedure in listed}
    _refuse_misfits(path, found, gold, missing)
    kept = [procedure for procedure in gold if procedure.id in found]
    marked = any(_is_marked(procedure) for procedure in found.values())
    same = not marked and all(
        [block.events for block in found[procedure.id].blocks] == [block.events for block in procedure.blocks]
        for procedure in kept
    )
    chosen: Literal["predicted", "event"] = read if read != "auto" else "predicted" if marked else "event"
    strangers = sum(
        event not in procedure.events
        for procedure in kept
        for block in found[procedure.id].blocks
        for event, _ in (block.predicted_events if chosen == "predicted" else block.events)
    )
    labels = {procedure.id: _labels(found[procedure.id], procedure, chosen) for procedure in kept}
    other = sum(_differing(found[procedure.id], procedure) for procedure in kept) if chosen == "predicted" else 0
    pairs = sum(procedure.pairs for procedure in kept)
    return PredictionFile(labels, chosen, same, strangers, other, pairs, unread)


def _differing(found: Procedure, gold: Procedure) -> int:
    """The (event, step) pairs to which two gold annotations give different labels, by the official reading."""
    events = dict.fromkeys((*gold.events, *found.events))
    return sum(
        label_in(own.events, event, official=True) != label_in(block.events, event, official=True)
        for own, block in zip(found.blocks, gold.blocks, strict=True)
        for event in events
    )


def _is_marked(procedure: Procedure) -> bool:
    own = all(procedure.raw.get(key) == value for key, value in _MARK.items())
    return own or any(block.predicted_events for block in procedure.blocks)


def _labels(found: Procedure, gold: Procedure, read: Literal["predicted", "event"]) -> Predicted:
    changes = [block.predicted_events if read == "predicted" else block.events for block in found.blocks]
    official, corrected = (
        [[label_in(block, event, official=reading) for event in gold.events] for block in changes]
        for reading in (True, False)
    )
    return Predicted(official, corrected)


def _refuse_misfits(path: Path, found: Mapping[str, Procedure], gold: Sequence[Procedure], missing: Missing) -> None:
    known = {procedure.id: procedure for procedure in gold}
    strangers = [name for name in found if name not in known]
    if strangers:
        raise UserError(
            f"{path}: procedure {strangers[0]!r} is not in the gold file ({len(strangers)} such); expected "
            "predictions for its procedures",
            remedy="name the gold file of the same split",
        )
    for name, procedure in found.items():
        if procedure.steps != known[name].steps:
            raise UserError(
                f"{path}, procedure {name!r}: has the {len(procedure.steps)} steps {procedure.steps[:2]!r}…; expected "
                f"the gold file's {len(known[name].steps)} {known[name].steps[:2]!r}…",
                remedy="name the gold file of the same split, and keep its blocks and step texts as they are",
            )
    lacking = [name for name in known if name not in found]
    if lacking and missing == "error":
        raise UserError(
            f"{path}: lacks procedure {lacking[0]!r} ({len(lacking)} of {len(known)} are missing)",
            remedy="predict all, or score what is there alone: --set missing=leave_out",
        )


def write_predictions(
    procedures: Sequence[Procedure],
    labels: Mapping[str, Sequence[Sequence[int]]],
    entities: Mapping[str, Sequence[Sequence[EntityChange]]],
) -> str:
    """The official output file: the gold blocks with predictions added; what is equally likely is left out.

    Args:
        labels: by procedure, [step][event].
        entities: by procedure, the entity changes that the model wrote after each step; may be empty.
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
