"""The official files of v2.0: procedures with state changes by entity and step, and clusters of names.

Three forms have one shape: `dev-ranked.json` (mentions as people wrote them, ` | ` between those of one entity),
`dev-data-reformatted-v4.json` (canonical names, clusters of mentions), and the same `-overgenerated-unique` (clusters
with paraphrases beside the mentions). The files with votes and salience wrap the changes once more. Files of one task
alone are read where the task is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from d2e_sft.util.errors import UserError, did_you_mean
from eval.compare.measures.measure import digest
from eval.systems import json_file
from eval.systems.flat import openpi2 as flat
from eval.systems.flat.lines import is_flat
from eval.systems.json_file import Node

Item = TypeVar("Item")

COMMIT = "90acda8957e232decad40c41d86af79800bdd68e"
HOMEPAGE = f"https://github.com/allenai/openpi-dataset/tree/{COMMIT}/v2.0"
_MINI = "source/cluster/archived/comparison_data"
_FOLDERS = ("", "v2.0", "v2.0/data", "data", "cluster_mini", "v2.0/cluster_mini", _MINI, f"v2.0/{_MINI}")
EXPANDED = "dev-data-reformatted-v4-overgenerated-unique.json"
CLUSTERED = "dev-data-reformatted-v4.json"
RANKED = "dev-ranked.json"
_BETWEEN = " | "


@dataclass(frozen=True)
class Change:
    """One attribute that a step changes.

    Attributes:
        attribute: canonical, or the mentions.
        before, after: accepted states, the first the one that the official scorer compares with.
    """

    attribute: str
    before: tuple[str, ...]
    after: tuple[str, ...]


@dataclass(frozen=True)
class EntityStates:
    """What happens to one entity; `steps` has the changes of every step of the procedure, none where empty."""

    entity: str
    steps: tuple[tuple[Change, ...], ...]


@dataclass(frozen=True)
class Names:
    """Names of one thing: mentions, and mentions with paraphrases where the file has them."""

    mentions: tuple[str, ...]
    expanded: tuple[str, ...] | None

    def of(self, expanded: bool) -> tuple[str, ...]:
        """The names with or without paraphrases."""
        if not expanded:
            return self.mentions
        assert self.expanded is not None
        return self.expanded


@dataclass(frozen=True)
class Cluster:
    """Names of an entity and, by canonical attribute, of its attributes."""

    names: Names
    attributes: Mapping[str, Names]


@dataclass(frozen=True)
class Procedure:
    """A wikiHow procedure; `clusters` by canonical entity, empty in the ranked form."""

    id: str
    goal: str
    steps: tuple[str, ...]
    states: tuple[EntityStates, ...]
    clusters: Mapping[str, Cluster] = field(default_factory=dict)


@dataclass(frozen=True)
class GoldState:
    """One gold change: mentions of entity and attribute, and the accepted states."""

    entity: tuple[str, ...]
    attribute: tuple[str, ...]
    before: tuple[str, ...]
    after: tuple[str, ...]


def normalise(name: str) -> str:
    """Lower case, without one leading article."""
    name = name.lower()
    for article in ("the ", "a ", "an "):
        if name.startswith(article):
            return name.removeprefix(article)
    return name


def alternatives(text: str) -> tuple[str, ...]:
    """What stands between the bars of a raw field, which may be one thing alone."""
    return tuple(text.split(_BETWEEN))


def sentence(attribute: str, entity: str, before: str, after: str) -> str:
    """A state change in the words of the official files."""
    return f"{attribute} of {entity} was {before} before and {after} after"


def names_of(
    procedure: Procedure, states: EntityStates, change: Change, *, expanded: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of a change's entity and of its attribute, by their clusters."""
    cluster = procedure.clusters[states.entity]
    return cluster.names.of(expanded), cluster.attributes[change.attribute].of(expanded)


def states_by_step(procedure: Procedure) -> list[list[GoldState]]:
    """The changes of each step, in the order of the official states files: by entity, then as annotated."""
    return [
        [
            GoldState(alternatives(states.entity), alternatives(change.attribute), change.before, change.after)
            for states in procedure.states
            for change in states.steps[place]
        ]
        for place in range(len(procedure.steps))
    ]


def find_official(data: Path, name: str, *, needed_by: str) -> Path:
    """The path of an official file.

    Args:
        data: the folder with the official files, or one of them.

    Raises:
        UserError: it is not there.
    """
    found = look_for(data, name)
    if found is None:
        raise UserError(
            f"--data {data}: holds no {name}, which {needed_by} needs; looked in the folder itself and in "
            f"{', '.join(filter(None, _FOLDERS))}",
            remedy=f"d2e data download openpi2 gets it; or take it from {HOMEPAGE}",
        )
    return found


def look_for(data: Path, name: str) -> Path | None:
    """The same, or None."""
    root = data if data.is_dir() else data.parent
    return next((path for folder in _FOLDERS if (path := root / folder / name).is_file()), None)


def clustered_file(data: Path, needed_by: str) -> Path:
    """The expanded file where it is there, since it has the clusters without paraphrases, too; else the other."""
    return look_for(data, EXPANDED) or find_official(data, CLUSTERED, needed_by=needed_by)


def read_official(path: Path) -> Node:
    """The content of a JSON file that is one object which is not empty, or of flat predictions in that form.

    Raises:
        UserError: the file is missing, is no UTF-8 JSON, has a key twice, or is something else.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file", remedy="download the official files: d2e data download openpi2")
    value = flat.read_flat(path) if is_flat(path) else json_file.read_json(path)
    node = Node(value, path)
    if not isinstance(value, dict) or not value:
        raise node.wrong("an object by procedure id that is not empty")
    return node


def official_text(content: Any) -> str:
    """A file's text, indented as the official ones are."""
    return json.dumps(content, indent=4, ensure_ascii=False) + "\n"


def read_procedures(path: Path) -> dict[str, Procedure]:
    """The procedures of an official file by id.

    Raises:
        UserError: the file is missing or damaged; file, place, value and expectation are named.
    """
    return {key: _procedure(key, node) for key, node in read_official(path).members()}


def read_clustered(path: Path) -> dict[str, Procedure]:
    """As `read_procedures`, of a file that has clusters."""
    procedures = read_procedures(path)
    for procedure in procedures.values():
        missing = next(filter(None, (_without_cluster(procedure, states) for states in procedure.states)), None)
        if missing is not None:
            raise UserError(
                f"{path}, {procedure.id}.clusters: has none of {missing!r}, which has states; expected the clusters "
                f"of {CLUSTERED} or {EXPANDED}",
                remedy="score schemata and sentences against one of these; states alone need no clusters",
            )
    return procedures


def _without_cluster(procedure: Procedure, states: EntityStates) -> str | None:
    """An entity, or an attribute of one, that changes and has no cluster."""
    cluster = procedure.clusters.get(states.entity)
    if cluster is None:
        return states.entity
    known = {normalise(name) for name in cluster.attributes}
    changes = (change for step in states.steps for change in step)
    return next((f"{c.attribute} of {states.entity}" for c in changes if normalise(c.attribute) not in known), None)


def digest_of(procedures: Mapping[str, Procedure], keys: Iterable[str]) -> str:
    """Of what is right in some of the procedures."""
    return digest([asdict(procedures[key]) for key in sorted(keys)])


def has_expansion(procedures: Mapping[str, Procedure]) -> bool:
    """Whether the file gives paraphrases beside the mentions."""
    clusters = [cluster for procedure in procedures.values() for cluster in procedure.clusters.values()]
    return bool(clusters) and all(cluster.names.expanded is not None for cluster in clusters)


def _procedure(key: str, node: Node) -> Procedure:
    steps = node["steps"].texts()
    if not steps:
        raise node["steps"].wrong("at least one step")
    clusters = node["clusters"].members() if "clusters" in node else iter(())
    return Procedure(
        id=key,
        goal=node["goal"].text(),
        steps=steps,
        states=tuple(_states(state, len(steps)) for state in node["states"].items()),
        clusters={name: _cluster(item) for name, item in clusters},
    )


def _states(node: Node, steps: int) -> EntityStates:
    named = [f"step{number}" for number in range(1, steps + 1)]
    if [key for key, _ in node["answers"].members()] != named:
        raise node["answers"].wrong(f"the {steps} steps of the procedure, {named[0]} to {named[-1]}")
    return EntityStates(node["entity"].text(), tuple(_changes(node["answers"][name]) for name in named))


def _changes(node: Node) -> tuple[Change, ...]:
    # Files with votes say {"votes": 13, "states": [{"votes": 7, "states": {…}}]}, predictions {"attributes": […]}.
    listed = node.unwrapped("states").unwrapped("attributes")
    changes = [item.unwrapped("states") for item in listed.items()]
    return tuple(
        Change(change["attribute"].text(), *(alternatives(change[name].text()) for name in ("before", "after")))
        for change in changes
    )


def _cluster(node: Node) -> Cluster:
    return Cluster(
        _names(node, "entity_cluster"),
        {
            name: _names(item, "attribute_cluster") if "attribute_cluster" in item else Names(item.texts(), None)
            for name, item in node["attribute_cluster"].members()
        },
    )


def _names(node: Node, kind: str) -> Names:
    combined = f"{kind}_combined"
    return Names(node[kind].texts(), node[combined].texts() if combined in node else None)


def read_by_step(path: Path, steps: Mapping[str, int], item: Callable[[Node], Item]) -> dict[str, list[Item]]:
    """Predictions of the form {procedure: [one item for each step]}.

    Args:
        steps: how many steps each gold procedure has.
        item: reads one.

    Raises:
        UserError: the file is damaged, or does not fit the gold procedures.
    """
    root = read_official(path)
    check_known(root.value, steps, path)
    found = {}
    for key, node in root.members():
        if len(node.items()) != steps[key]:
            raise node.wrong(f"one item for each of the {steps[key]} steps of the procedure, not {len(node.value)}")
        found[key] = [item(step) for step in node.items()]
    return found


def count_steps(procedures: Mapping[str, Procedure]) -> dict[str, int]:
    """The number of steps of each procedure."""
    return {key: len(procedure.steps) for key, procedure in procedures.items()}


def check_known(predictions: Mapping[str, Any], gold: Mapping[str, Any], path: Path) -> None:
    """Refuse predictions for procedures that the gold file lacks."""
    unknown = next((key for key in predictions if key not in gold), None)
    if unknown is not None:
        raise UserError(
            f"{path}, {unknown}: no such procedure in the gold file; expected ids such as "
            f"{', '.join(list(gold)[:3])}.{did_you_mean(unknown, gold)}",
            remedy="name the gold file that these predictions were made for",
        )
