"""Groups of names: read from replies, joined over several answers, and scored (paper section 3.1).

They are scored by exact match of sets against procedures that were labelled by hand, without names that the labels
lack. The official script swaps names: its "recall" divides correct predicted clusters by the number of *gold*
clusters, its "precision" found gold clusters by the number of *predicted* ones. The corrected figures have the usual
names, drop empty clusters, and count each cluster once.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import AliasChoices, Field, field_validator

from eval.systems.files import Row, check_ids
from eval.systems.openpi2.gold import alternatives, normalise, official_text, read_official
from eval.systems.openpi2.metrics import PrecisionRecall
from eval.systems.openpi2.task import AttributeForm

Kind = Literal["entities", "attributes"]
Clustering = list[list[str]]
# By procedure and entity the clusters of its attributes; those of the entities themselves are under the empty name.
Groups = Mapping[str, Mapping[str, Sequence[Sequence[str]]]]


@dataclass
class ClusterScores:
    """Figures by their usual names; what `official` has as its `precision` is officially called so, too."""

    official: PrecisionRecall
    corrected: PrecisionRecall


def parse_groups(reply: str) -> list[tuple[str, ...]]:
    """Return the groups of a reply, each a list in brackets on its own line."""
    starts = ((line, line.find("[")) for line in reply.splitlines())
    return [group for line, start in starts if start >= 0 and (group := _list(line[start:].strip()))]


def _list(text: str) -> tuple[str, ...]:
    # An answer that was cut off may lack its last bracket; a list may have a comma after it.
    for candidate in (text, text.rstrip(",."), text.rstrip(",") + "]", text + "']"):
        try:
            value = ast.literal_eval(candidate)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return tuple(value)
    return ()


def aggregate(names: Sequence[str], answers: Iterable[Sequence[tuple[str, ...]]], *, leftovers: str) -> Clustering:
    """Join the groups of several answers into one clustering (paper section 3.1, footnote 3).

    The most frequent group is taken first, then the next one whose names are all free; the order of names does not
    matter. Groups with other names are skipped. Ties go to the first group. The remaining names are one cluster if
    `leftovers` is `together`, like the official script for entities, or one each if `apart`, as for attributes.
    """
    counts: Counter[frozenset[str]] = Counter()
    written: dict[frozenset[str], tuple[str, ...]] = {}
    for groups in answers:
        for group in groups:
            counts[frozenset(group)] += 1
            written.setdefault(frozenset(group), group)
    left = list(dict.fromkeys(names))
    clusters: Clustering = []
    for members, _ in counts.most_common():
        if members and members <= set(left):
            clusters.append(list(dict.fromkeys(written[members])))
            left = [name for name in left if name not in members]
    if left:
        clusters += [left] if leftovers == "together" else [[name] for name in left]
    return clusters


def merge_alike(names: Sequence[str]) -> dict[str, list[str]]:
    """Return the first of names that differ only by article, letter case or plural → all of them."""
    first: dict[str, str] = {}
    merged: dict[str, list[str]] = {}
    for name in names:
        bare = normalise(name.strip())
        if len(bare) > 4 and not bare.endswith("ss"):  # its singular
            bare = bare[:-3] + "y" if bare.endswith("ies") else bare.removesuffix("s")
        kept = first.setdefault(bare, name)
        merged.setdefault(kept, []).append(name)
    return merged


def spread(clusters: Clustering, merged: dict[str, list[str]]) -> Clustering:
    """Return the clustering of all names from that of the first names."""
    return [[name for first in cluster for name in merged[first]] for cluster in clusters]


def score_clusters(gold: Groups, predictions: Groups) -> ClusterScores:
    """Score the clusters of all procedures; entities whose attributes have one gold cluster are skipped."""
    official, corrected = PrecisionRecall(), PrecisionRecall()
    for key, entity in ((key, entity) for key, entities in predictions.items() for entity in entities):
        wanted = gold[key][entity]
        if entity and len(wanted) <= 1:
            continue
        known = {name for group in wanted for name in group}
        predicted = [tuple(name for name in group if name in known) for group in predictions[key][entity]]
        # What is officially "precision" has gold clusters above and predicted ones below.
        official.predicted += len(predicted)
        official.predicted_right += sum(_found(group, predicted) for group in wanted)
        official.gold += len(wanted)
        official.gold_found += sum(_found(group, wanted) for group in predicted)
        corrected.count(set(map(frozenset, filter(None, predicted))), set(map(frozenset, wanted)))
    return ClusterScores(official, corrected)


def _found(group: Sequence[str], others: Iterable[Sequence[str]]) -> bool:
    # As officially: as many names, each of them in the other.
    return any(len(group) == len(other) and all(name in other for name in group) for other in others)


class ToCluster(Row):
    """A procedure with names to be clustered.

    Attributes:
        names: entity mentions under one empty key; or by entity the entries of its attributes, each one or several
            mentions with ` | ` between them.
    """

    goal: str
    steps: tuple[str, ...]
    names: dict[str, tuple[str, ...]] = Field(validation_alias=AliasChoices("entity_attr_dict", "entities_flattened"))

    @field_validator("names", mode="before")
    @classmethod
    def _of_entities(cls, value: Any) -> Any:
        return {"": list(dict.fromkeys(value))} if isinstance(value, list) else value


class _Labelled(Row):
    groups: dict[str, list[Any]] = Field(validation_alias=AliasChoices("entity_attr_dict", "entities"))

    @field_validator("groups", mode="before")
    @classmethod
    def _of_entities(cls, value: Any) -> Any:
        return {"": value} if isinstance(value, list) else value


def read_to_cluster(path: Path) -> dict[str, ToCluster]:
    """Read each procedure's entity mentions, each once, or the attribute mentions of its entities."""
    return read_official(path, ToCluster)


def read_gold_groups(path: Path) -> Groups:
    """Read gold clusters: lists of entities, or attributes with bars between them."""
    return {
        key: {
            entity: [_stripped(alternatives(group) if isinstance(group, str) else group) for group in groups]
            for entity, groups in found.groups.items()
        }
        for key, found in read_official(path, _Labelled).items()
    }


def read_predicted_groups(path: Path, gold: Groups, kind: Kind, form: AttributeForm = "vanilla") -> Groups:
    """Read predicted clusters; UserError if the file is damaged, or names what is not in the gold file.

    Of entities it is {procedure: {first name: [names]}}, of attributes {procedure: {entity: {name: [further names]}}}.
    Concise attributes end with " of ENTITY", which is left out.
    """
    schema = dict[str, list[str]] if kind == "entities" else dict[str, dict[str, list[str]]]
    found = read_official(path, schema)
    check_ids(path, "procedure", found, gold)
    if kind == "entities":
        return {key: {"": list(map(_stripped, groups.values()))} for key, groups in found.items()}
    predicted: dict[str, dict[str, list[tuple[str, ...]]]] = {}
    for key, entities in found.items():
        check_ids(path, f"entity of procedure {key}", entities, gold[key])
        predicted[key] = {
            entity: [
                tuple(dict.fromkeys(text.removesuffix(suffix(entity, form)) for text in _stripped((name, *rest))))
                for name, rest in groups.items()
            ]
            for entity, groups in entities.items()
        }
    return predicted


def suffix(entity: str, form: AttributeForm) -> str:
    """Return the ending of a concise attribute: the first mention of its entity."""
    return f" of {alternatives(entity)[0].strip()}" if form == "concise" else ""


def _stripped(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(text.strip() for text in texts)


def clusters_file(predictions: Mapping[str, Mapping[str, Clustering]], kind: Kind) -> str:
    """Return the official form; a cluster of attributes is its first name → the others, or itself without others."""
    if kind == "entities":
        return official_text({key: {group[0]: group for group in found[""]} for key, found in predictions.items()})
    return official_text(
        {
            key: {entity: {group[0]: group[1:] or group for group in groups} for entity, groups in entities.items()}
            for key, entities in predictions.items()
        }
    )
