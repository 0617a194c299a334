"""The ten procedures whose clusters were labelled by hand, and what was to be clustered in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from d2e_sft.util.errors import UserError
from eval.systems.openpi2.gold import alternatives
from eval.systems.openpi2.reading import Node, read_json

ENTITY_INPUT, ENTITY_GOLD = "dev_data_mini_entity.json", "dev_data_mini_annotated_entity.json"
ATTRIBUTE_INPUT, ATTRIBUTE_GOLD = "dev_data_mini_attr.json", "dev_data_mini_annotated_attr.json"

Groups = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class ToCluster:
    """A procedure with names to be clustered.

    Attributes:
        names: entity mentions under one empty key; or by entity the entries of its attributes, each one or several
            mentions with ` | ` between them.
    """

    id: str
    goal: str
    steps: tuple[str, ...]
    names: Mapping[str, tuple[str, ...]]


def read_entities_to_cluster(path: Path) -> dict[str, ToCluster]:
    """Entity mentions of each procedure, each once.

    Raises:
        UserError: the file is missing or damaged; so do the other readers.
    """
    return {
        key: _to_cluster(key, node, {"": _once(node["entities_flattened"].texts())})
        for key, node in read_json(path).members()
    }


def read_attributes_to_cluster(path: Path) -> dict[str, ToCluster]:
    """Attribute mentions of each entity of each procedure."""
    return {
        key: _to_cluster(key, node, {entity: groups.texts() for entity, groups in node["entity_attr_dict"].members()})
        for key, node in read_json(path).members()
    }


def read_entity_groups(path: Path) -> dict[str, Groups]:
    """Gold clusters of each procedure's entities."""
    return {
        key: tuple(_stripped(group.texts()) for group in node["entities"].items())
        for key, node in read_json(path).members()
    }


def read_attribute_groups(path: Path) -> dict[str, dict[str, Groups]]:
    """Gold clusters of the attributes of each procedure's entities."""
    return {
        key: {
            entity: tuple(_stripped(alternatives(text)) for text in groups.texts())
            for entity, groups in node["entity_attr_dict"].members()
        }
        for key, node in read_json(path).members()
    }


def read_predicted_entity_groups(path: Path, gold: Mapping[str, Groups]) -> dict[str, Groups]:
    """Predicted clusters, in the official form {procedure: {first name: [names]}}.

    Raises:
        UserError: the file is missing or damaged, or names a procedure that is not in the gold file.
    """
    found = {}
    for key, node in read_json(path).members():
        _known(key, gold, path)
        found[key] = tuple(_stripped(names.texts()) for _, names in node.members())
    return found


def read_predicted_attribute_groups(
    path: Path, gold: Mapping[str, Mapping[str, Groups]]
) -> dict[str, dict[str, Groups]]:
    """Predicted clusters, in the official form {procedure: {entity: {name: [further names]}}}; errors as above."""
    found: dict[str, dict[str, Groups]] = {}
    for key, node in read_json(path).members():
        _known(key, gold, path)
        found[key] = {}
        for entity, groups in node.members():
            if entity not in gold[key]:
                raise groups.wrong(f"an entity of the gold file, which has none of {entity!r}")
            found[key][entity] = tuple(_once(_stripped((name, *rest.texts()))) for name, rest in groups.members())
    return found


def _to_cluster(key: str, node: Node, names: Mapping[str, tuple[str, ...]]) -> ToCluster:
    return ToCluster(key, node["goal"].text(), node["steps"].texts(), names)


def _known(key: str, gold: Mapping[str, object], path: Path) -> None:
    if key not in gold:
        raise UserError(f"{path}, {key}: no such procedure in the gold file; expected some of {', '.join(gold)}")


def _stripped(texts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(text.strip() for text in texts)


def _once(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
