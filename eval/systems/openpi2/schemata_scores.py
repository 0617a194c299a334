"""Scores of schemata by exact match against clusters, over procedures and over steps.

`score_schemata` has the official script's quirks, on which published numbers depend. Predictions are normalised for
precision but not for recall. An attribute can be found in every step. A match with a cluster counts for global
precision only until its canonical pair is predicted. `score_schemata_corrected` counts each item once, normalised.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from eval.systems.openpi2.gold import Cluster, Procedure, Procedures, normalise
from eval.systems.openpi2.metrics import PrecisionRecall

# Entity → its attributes, at one step.
Schema = Mapping[str, Sequence[str]]
Schemas = Mapping[str, Sequence[Schema]]  # by procedure, those of each step


@dataclass
class SchemataScores:
    """Entities, and attributes of entities; of procedures (global) and of steps (local)."""

    entities_global: PrecisionRecall = field(default_factory=PrecisionRecall)
    attributes_global: PrecisionRecall = field(default_factory=PrecisionRecall)
    entities_local: PrecisionRecall = field(default_factory=PrecisionRecall)
    attributes_local: PrecisionRecall = field(default_factory=PrecisionRecall)

    def as_json(self) -> dict[str, Any]:
        """Return each figure by name."""
        return {name: figures.as_json() for name, figures in vars(self).items()}


@dataclass(frozen=True)
class ClusterNames:
    """Normalised names by normalised canonical name; of equal canonical names the last one's stay, as officially."""

    entities: dict[str, Collection[str]]
    attributes: dict[str, dict[str, Collection[str]]]

    @classmethod
    def of(cls, clusters: Mapping[str, Cluster], expanded: bool) -> ClusterNames:
        entities: dict[str, Collection[str]] = {}
        attributes: dict[str, dict[str, Collection[str]]] = {}
        for canonical, cluster in clusters.items():
            name = normalise(canonical)
            entities[name] = {normalise(mention) for mention in cluster.names.of(expanded)}
            attributes[name] = {
                normalise(attribute): {normalise(mention) for mention in names.of(expanded)}
                for attribute, names in cluster.attributes.items()
            }
        return cls(entities, attributes)

    def has(self, entity: str) -> bool:
        return any(entity in names for names in self.entities.values())

    def matches(self, entity: str, attribute: str) -> Iterator[tuple[str, str]]:
        """Yield the canonical pairs whose clusters hold the two names."""
        for canonical, names in self.entities.items():
            if entity in names:
                for canonical_attribute, attribute_names in self.attributes[canonical].items():
                    if attribute in attribute_names:
                        yield canonical, canonical_attribute

    def match(self, entity: str, attribute: str) -> tuple[str, str] | None:
        """Return the first of these pairs."""
        return next(self.matches(entity, attribute), None)


def score_schemata(gold: Procedures, predictions: Schemas, *, expanded: bool) -> SchemataScores:
    """Score the schema of each step like the official script; with `expanded` match with paraphrases too."""
    scores = SchemataScores()
    for key, steps in predictions.items():
        procedure = gold[key]
        clusters = ClusterNames.of(procedure.clusters, expanded)
        _global_recall(procedure, clusters, steps, expanded, scores)
        _precision(clusters, steps, scores)
        _local_recall(procedure, clusters, steps, scores)
    return scores


def _global_recall(
    procedure: Procedure, clusters: ClusterNames, steps: Sequence[Schema], expanded: bool, scores: SchemataScores
) -> None:
    for canonical, cluster in procedure.clusters.items():
        names = clusters.entities[normalise(canonical)]
        matching = [attributes for step in steps for entity, attributes in step.items() if entity in names]
        scores.entities_global.gold += 1
        scores.entities_global.gold_found += bool(matching)
        scores.attributes_global.gold += len(cluster.attributes)
        for attribute_names in cluster.attributes.values():
            found = set(attribute_names.of(expanded))
            scores.attributes_global.gold_found += sum(not found.isdisjoint(attributes) for attributes in matching)


def _precision(clusters: ClusterNames, steps: Sequence[Schema], scores: SchemataScores) -> None:
    seen: set[str] = set()
    seen_pairs: set[tuple[str, str]] = set()
    for raw_entity, raw_attributes in ((entity, step[entity]) for step in steps for entity in step):
        entity = normalise(raw_entity)
        known = clusters.has(entity)
        scores.entities_local.predicted += 1
        scores.entities_local.predicted_right += known
        scores.entities_global.predicted += entity not in seen
        scores.entities_global.predicted_right += known and entity not in seen
        for attribute in map(normalise, raw_attributes):
            match = clusters.match(entity, attribute)
            scores.attributes_local.predicted += 1
            scores.attributes_local.predicted_right += match is not None
            scores.attributes_global.predicted += (entity, attribute) not in seen_pairs
            scores.attributes_global.predicted_right += match is not None and match not in seen_pairs
            seen_pairs.add((entity, attribute))
        seen.add(entity)


def _local_recall(
    procedure: Procedure, clusters: ClusterNames, steps: Sequence[Schema], scores: SchemataScores
) -> None:
    for states in procedure.states:
        canonical = normalise(states.entity)
        names, attributes = clusters.entities[canonical], clusters.attributes[canonical]
        for changes, step in zip(states.steps, steps, strict=True):
            if not changes:
                continue
            matching = [predicted for entity, predicted in step.items() if entity in names]
            scores.entities_local.gold += 1
            scores.entities_local.gold_found += len(matching)
            scores.attributes_local.gold += len(step) * len(changes)
            scores.attributes_local.gold_found += sum(
                attribute in attributes[normalise(change.attribute)]
                for predicted in matching
                for change in changes
                for attribute in predicted
            )


def score_schemata_corrected(gold: Procedures, predictions: Schemas, *, expanded: bool) -> SchemataScores:
    """Count each gold item and each distinct prediction of a procedure (locally of a step) once.

    As officially, a prediction is correct if clusters of the procedure hold it, also locally.
    """
    scores = SchemataScores()
    for key, raw_steps in predictions.items():
        clusters = ClusterNames.of(gold[key].clusters, expanded)
        steps = [
            {(normalise(entity), normalise(attribute)) for entity, names in step.items() for attribute in names}
            for step in raw_steps
        ]
        entities = [{normalise(entity) for entity in step} for step in raw_steps]
        all_entities, all_pairs = set().union(*entities), set().union(*steps)
        for level, seen in ((scores.entities_global, [all_entities]), (scores.entities_local, entities)):
            level.predicted += sum(map(len, seen))
            level.predicted_right += sum(clusters.has(entity) for step in seen for entity in step)
        for level, pairs in ((scores.attributes_global, [all_pairs]), (scores.attributes_local, steps)):
            level.predicted += sum(map(len, pairs))
            level.predicted_right += sum(clusters.match(*pair) is not None for step in pairs for pair in step)
        for canonical, names in clusters.entities.items():
            scores.entities_global.gold += 1
            scores.entities_global.gold_found += not all_entities.isdisjoint(names)
            for attribute_names in clusters.attributes[canonical].values():
                scores.attributes_global.gold += 1
                scores.attributes_global.gold_found += _holds(all_pairs, names, attribute_names)
        for states in gold[key].states:
            canonical = normalise(states.entity)
            names = clusters.entities[canonical]
            for changes, step_entities, step_pairs in zip(states.steps, entities, steps, strict=True):
                changed = {normalise(change.attribute) for change in changes}
                scores.entities_local.gold += bool(changed)
                scores.entities_local.gold_found += bool(changed) and not step_entities.isdisjoint(names)
                scores.attributes_local.gold += len(changed)
                scores.attributes_local.gold_found += sum(
                    _holds(step_pairs, names, clusters.attributes[canonical][attribute]) for attribute in changed
                )
    return scores


def _holds(pairs: set[tuple[str, str]], entities: Collection[str], attributes: Collection[str]) -> bool:
    return any(entity in entities and attribute in attributes for entity, attribute in pairs)
