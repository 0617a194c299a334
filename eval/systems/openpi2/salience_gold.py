"""Salience of entities as people judged it: of procedures (global) and of steps (local), procedures 1 to 20."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from d2e_sft.util.errors import UserError
from eval.systems.openpi2.reading import Node, read_json

HUMAN = "dev-data-reformatted-v4_votes_score_salience_1-20.json"
SECOND_HUMAN = "dev-data-reformatted-v4_votes_salience_1-20_human2.json"
JUDGED = tuple(map(str, range(1, 21)))
PREDICTED = ("global_salience_pred", "local_salience_pred")
_GOLD = ("global_salience", "local_salience")


@dataclass(frozen=True)
class EntitySalience:
    """One entity's salience: of the procedure, and of each step."""

    entity: str
    overall: int
    steps: tuple[int, ...]


Saliences = Mapping[str, tuple[EntitySalience, ...]]


def read_salience(path: Path) -> Saliences:
    """Salience of the judged procedures, from an official file of judgements or of predictions.

    Raises:
        UserError: the file is missing or damaged, or has neither judgements nor predictions.
    """
    root = read_json(path)
    return {key: _procedure(node["states"]) for key, node in root.members() if key in JUDGED}


def _procedure(node: Node) -> tuple[EntitySalience, ...]:
    found = []
    for state in node.items():
        kind = next((names for names in (PREDICTED, _GOLD) if names[0] in state), None)
        if kind is None:
            raise state.wrong(f"a salience, {_GOLD[0]!r} or {PREDICTED[0]!r}")
        steps = tuple(step[kind[1]].integer() for _, step in state["answers"].members())
        found.append(EntitySalience(state["entity"].text(), state[kind[0]].integer(), steps))
    return tuple(found)


def check_same_entities(first: Saliences, second: Saliences, path: Path) -> None:
    """Refuse two files that do not judge the same entities and steps in the same order.

    Args:
        path: the second's, for the message.
    """
    for key, entities in second.items():
        if key not in first:
            raise UserError(f"{path}, {key}: no such procedure in the gold file; expected some of {', '.join(first)}")
        named = [(item.entity, len(item.steps)) for item in entities]
        expected = [(item.entity, len(item.steps)) for item in first[key]]
        if named != expected:
            raise UserError(
                f"{path}, {key}: got the entities {[name for name, _ in named]}; expected those of the gold file, "
                f"{[name for name, _ in expected]}, each with its steps",
                remedy="score predictions for the same file of procedures",
            )
