"""What the downstream experiment needs of CREPE's data file (Zhang et al., 2023): steps and the events' labels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from eval.systems.openpi2.gold import Procedure
from eval.systems.openpi2.reading import Node, read_json

LABELS = ("equally likely", "less likely", "more likely")


@dataclass(frozen=True)
class CrepeProcedure:
    """A procedure and, for each event that some step changes, the label after each step (places in `LABELS`)."""

    procedure: Procedure
    events: dict[str, tuple[int, ...]]


def read_crepe(path: Path) -> dict[str, CrepeProcedure]:
    """CREPE's procedures by id; the first block, the start, is not scored and left out.

    Raises:
        UserError: the file is missing or damaged.
    """
    found = {}
    for key, node in read_json(path).members():
        blocks = [[item for item in block.items() if "type" in item] for block in node["steps"].items()[1:]]
        steps = tuple(_step(block, node) for block in blocks)
        changes = [_changes(block) for block in blocks]
        names = dict.fromkeys(event for change in changes for event in change)
        events = {event: tuple(change.get(event, 0) for change in changes) for event in names}
        found[key] = CrepeProcedure(Procedure(key, node["goal"].text(), steps, ()), events)
    return found


def _step(block: list[Node], procedure: Node) -> str:
    steps = [item["step"].text() for item in block if item["type"].text() == "step"]
    if len(steps) != 1:
        raise procedure["steps"].wrong("after the first block exactly one item of type step in each")
    return steps[0]


def _changes(block: list[Node]) -> dict[str, int]:
    # Officially whatever is not "less likely" is more likely, and of two entries for an event the last counts.
    return {
        item["event"].text(): 1 if item["change"].text() == LABELS[1] else 2
        for item in block
        if item["type"].text() == "event"
    }
