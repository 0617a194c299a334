"""The official files of v2.0: procedures with state changes by entity and step, and clusters of names.

Three forms have one shape: `dev-ranked.json` (mentions as people wrote them, ` | ` between those of one entity),
`dev-data-reformatted-v4.json` (canonical names, clusters of mentions), and the same `-overgenerated-unique` (clusters
with paraphrases beside the mentions). The files with votes and salience wrap the changes once more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from d2e_sft.util.errors import UserError
from eval.systems.openpi2.names import normalise
from eval.systems.openpi2.reading import Node, read_json

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


def alternatives(text: str) -> tuple[str, ...]:
    """What stands between the bars of a raw field, which may be one thing alone."""
    return tuple(text.split(_BETWEEN))


def read_procedures(path: Path) -> dict[str, Procedure]:
    """The procedures of an official file by id.

    Raises:
        UserError: the file is missing or damaged; file, place, value and expectation are named.
    """
    return {key: _procedure(key, node) for key, node in read_json(path).members()}


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
