"""Prediction files in the official formats, checked against the gold procedures.

- schemata: procedure id → for each step {entity: [attributes]}
- states: procedure id → for each step [[entity, attribute, before, after], …], one for each gold change, in order
- complete: procedure id → for each step [sentences]
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from d2e_sft.util.errors import UserError, did_you_mean
from eval.systems.openpi2.reading import Node, read_json

Item = TypeVar("Item")


class StatePair(NamedTuple):
    """One item of the states task, as the official files write it."""

    entity: str
    attribute: str
    before: str
    after: str


def read_schemata(path: Path, steps: Mapping[str, int]) -> dict[str, list[dict[str, list[str]]]]:
    """Predicted attributes by entity, by step of each procedure.

    Args:
        steps: how many steps each gold procedure has.

    Raises:
        UserError: the file is damaged, or does not fit the gold procedures.
    """
    return _read(path, steps, lambda node: {entity: list(item.texts()) for entity, item in node.members()})


def read_sentences(path: Path, steps: Mapping[str, int]) -> dict[str, list[list[str]]]:
    """Predicted sentences by step of each procedure; errors as in `read_schemata`."""
    return _read(path, steps, lambda node: list(node.texts()))


def read_states(path: Path, steps: Mapping[str, int]) -> dict[str, list[list[StatePair]]]:
    """Predicted states by step of each procedure; errors as in `read_schemata`."""
    return _read(path, steps, lambda node: [_state(item) for item in node.items()])


def as_text(predictions: Any) -> str:
    """Predictions as a file's text, indented as the official ones are."""
    return json.dumps(predictions, indent=4, ensure_ascii=False) + "\n"


def chosen(predictions: Mapping[str, Any], gold: Mapping[str, Any], path: Path) -> None:
    """Refuse predictions for procedures that the gold file lacks."""
    unknown = next((key for key in predictions if key not in gold), None)
    if unknown is not None:
        raise UserError(
            f"{path}, {unknown}: no such procedure in the gold file; expected ids such as "
            f"{', '.join(list(gold)[:3])}.{did_you_mean(unknown, gold)}",
            remedy="name the gold file that these predictions were made for",
        )


def _read(path: Path, steps: Mapping[str, int], item: Callable[[Node], Item]) -> dict[str, list[Item]]:
    root = read_json(path)
    chosen(root.value, steps, path)
    found = {}
    for key, node in root.members():
        if len(node.items()) != steps[key]:
            raise node.wrong(f"one item for each of the {steps[key]} steps of the procedure, not {len(node.value)}")
        found[key] = [item(step) for step in node.items()]
    return found


def _state(node: Node) -> StatePair:
    fields: Sequence[str] = node.texts()
    if len(fields) != 4:
        raise node.wrong("entity, attribute, before and after")
    return StatePair(*fields)
