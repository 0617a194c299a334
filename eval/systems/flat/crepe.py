"""CREPE's predictions as lines of `procedure`, `step`, `event` and `change`, one for each pair that is scored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from d2e_sft.util.errors import UserError, did_you_mean
from eval.systems.crepe.gold import LABELS, Procedure
from eval.systems.flat.lines import Line, fields, read_lines, whole
from eval.systems.json_file import shown

Pair = tuple[str, int, str]  # procedure, step counted from 1, event


def template(procedures: Sequence[Procedure]) -> Iterator[Line]:
    """A line for each pair, without its change."""
    for name, step, event in _pairs(procedures):
        yield {"procedure": name, "step": step, "event": event, "change": ""}


def _pairs(procedures: Sequence[Procedure]) -> list[Pair]:
    return [
        (procedure.id, step, event)
        for procedure in procedures
        for step in range(1, len(procedure.blocks) + 1)
        for event in procedure.events
    ]


def read_flat(path: Path, gold: Sequence[Procedure]) -> tuple[list[Procedure], int]:
    """The gold procedures that have lines, with what is predicted of them, and how many lines are null.

    A null could not be read, and is equally likely, as in the official code.

    Raises:
        UserError: a line is damaged or about no pair of the gold file, or a procedure has lines of some pairs only.
    """
    known = {procedure.id: procedure for procedure in gold}
    found: dict[Pair, str | None] = {}
    for place, row in read_lines(path):
        pair = _pair(row, place, known)
        if pair in found:
            raise UserError(f"{place}: step {pair[1]} and event {pair[2]!r} of {pair[0]!r} are predicted twice")
        change = row.get("change", "")
        if change is not None and change not in LABELS:
            raise UserError(
                f"{place}: change: got {shown(change)}; expected one of {', '.join(LABELS)}, or null for an answer "
                "that could not be read"
            )
        found[pair] = change
    kept = [known[name] for name in dict.fromkeys(name for name, *_ in found)]
    lacking = [pair for pair in _pairs(kept) if pair not in found]
    if lacking or not found:
        told = f"step {lacking[0][1]} and event {lacking[0][2]!r} of {lacking[0][0]!r}" if lacking else "any pair"
        raise UserError(
            f"{path}: lacks {told} ({len(lacking):,} such); expected a line for each pair of a procedure",
            remedy="write all lines with --template FILE",
        )
    return [_predicted(procedure, found) for procedure in kept], sum(change is None for change in found.values())


def _pair(row: Line, place: str, known: dict[str, Procedure]) -> Pair:
    name, step, event = fields(row, ("procedure", "step", "event"), place)
    if name not in known:
        raise UserError(
            f"{place}: procedure {name!r} is not in the gold file.{did_you_mean(name, known)}",
            remedy="name the gold file of the same split",
        )
    procedure = known[name]
    if event not in procedure.events:
        raise UserError(
            f"{place}: event {event!r} is none of procedure {name!r}.{did_you_mean(event, procedure.events)}",
            remedy=f"expected one of {', '.join(map(repr, procedure.events)) or 'none'}",
        )
    return name, whole(step, "step", place, len(procedure.blocks)), event


def _predicted(procedure: Procedure, found: dict[Pair, str | None]) -> Procedure:
    blocks = []
    for step, block in enumerate(procedure.blocks, start=1):
        said = {event: found[procedure.id, step, event] for event in procedure.events}
        # Officially any dictionary is a change, so what is equally likely has none.
        events = tuple((event, change) for event, change in said.items() if change not in (None, LABELS[0]))
        blocks.append(replace(block, predicted_events=events))
    return replace(procedure, blocks=tuple(blocks))
