"""Schemata: which attributes of which entities change, asked step by step (paper section 3.2, table 3).

They are scored by exact match against clusters, over procedures and over steps. `score_schemata` follows the official
script, whose counts are of unlike things in places: predictions are normalised for precision but not for recall, an
attribute is found anew in every step, and a match with a cluster counts for global precision only as long as its
canonical pair has not been predicted itself. Published numbers depend on that. `score_schemata_corrected` counts each
gold item and each distinct prediction once, all of them normalised.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, product
from typing import Any, TypeVar

from d2e_sft.util.table import Table
from eval.compare.measures.measure import Measure
from eval.systems.openpi2.gold import Cluster, Procedure, digest_of, has_expansion, names_of, normalise
from eval.systems.openpi2.metrics import (
    PrecisionRecall,
    Scorer,
    bertscore_table,
    best_scores,
    cell,
    f1_measure,
    mean,
    scored,
)
from eval.systems.openpi2.task import scorer_of
from eval.systems.openpi2.tracking import Listed, ListingTask
from eval.systems.system import SystemResult

Item = TypeVar("Item")
# Of one step: entity → its attributes.
Schema = Mapping[str, Sequence[str]]
_LEVELS = ("entities_global", "attributes_global", "entities_local", "attributes_local")
_COLUMNS = ("of", "precision", "recall", "F1", "F1 expanded", "corrected F1", "corr. expanded")


def parse_schema(reply: str) -> dict[str, list[str]]:
    """`entity (attribute, attribute), entity (attribute)` as attributes by entity, in order.

    Entities are split at `"), "`; what has no `" ("` is no entity and left out, as is an empty attribute.
    """
    schema: dict[str, list[str]] = {}
    for part in reply.strip().split("), "):
        entity, opens, rest = part.partition(" (")
        # The text up to the next " (" is what the official split takes.
        names = [name.strip().strip(".").strip(")") for name in rest.split(" (")[0].split(",")]
        for attribute in filter(None, names) if opens else ():
            schema.setdefault(entity, []).append(attribute)
    return schema


@dataclass
class SchemataScores:
    """Entities, and attributes of entities; of procedures (global) and of steps (local)."""

    entities_global: PrecisionRecall = field(default_factory=PrecisionRecall)
    attributes_global: PrecisionRecall = field(default_factory=PrecisionRecall)
    entities_local: PrecisionRecall = field(default_factory=PrecisionRecall)
    attributes_local: PrecisionRecall = field(default_factory=PrecisionRecall)

    def as_json(self) -> dict[str, Any]:
        """Each figure by name."""
        return {name: figures.as_json() for name, figures in vars(self).items()}


@dataclass(frozen=True)
class _Clusters:
    """Normalised names by normalised canonical name; of equal canonical names the last one's stay, as officially."""

    entities: dict[str, Collection[str]]
    attributes: dict[str, dict[str, Collection[str]]]

    @classmethod
    def of(cls, clusters: Mapping[str, Cluster], expanded: bool) -> _Clusters:
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

    def match(self, entity: str, attribute: str) -> tuple[str, str] | None:
        """The first canonical pair whose clusters hold the two names."""
        for canonical, names in self.entities.items():
            if entity in names:
                for canonical_attribute, attribute_names in self.attributes[canonical].items():
                    if attribute in attribute_names:
                        return canonical, canonical_attribute
        return None

    def has_pair(self, pair: tuple[str, str]) -> bool:
        return self.match(*pair) is not None


def score_schemata(
    gold: Mapping[str, Procedure], predictions: Mapping[str, Sequence[Schema]], *, expanded: bool
) -> SchemataScores:
    """Scores as the official script counts them.

    Args:
        gold: procedures with clusters, by id.
        predictions: by procedure id the schema of each step.
        expanded: match with paraphrases, too.
    """
    scores = SchemataScores()
    for key, steps in predictions.items():
        procedure = gold[key]
        clusters = _Clusters.of(procedure.clusters, expanded)
        _global_recall(procedure, clusters, steps, expanded, scores)
        _precision(clusters, steps, scores)
        _local_recall(procedure, clusters, steps, scores)
    return scores


def _global_recall(
    procedure: Procedure, clusters: _Clusters, steps: Sequence[Schema], expanded: bool, scores: SchemataScores
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


def _precision(clusters: _Clusters, steps: Sequence[Schema], scores: SchemataScores) -> None:
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


def _local_recall(procedure: Procedure, clusters: _Clusters, steps: Sequence[Schema], scores: SchemataScores) -> None:
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


def score_schemata_corrected(
    gold: Mapping[str, Procedure], predictions: Mapping[str, Sequence[Schema]], *, expanded: bool
) -> SchemataScores:
    """Scores that count each gold item and each distinct prediction of a procedure, locally of a step, once.

    What is right stays as officially defined: a prediction is right, also locally, where clusters of the procedure
    hold it.
    """
    scores = SchemataScores()
    for key, raw_steps in predictions.items():
        clusters = _Clusters.of(gold[key].clusters, expanded)
        steps = [_pairs(step) for step in raw_steps]
        entities = [{normalise(entity) for entity in step} for step in raw_steps]
        _count(scores.entities_global, [set().union(*entities)], clusters.has)
        _count(scores.entities_local, entities, clusters.has)
        _count(scores.attributes_global, [set().union(*steps)], clusters.has_pair)
        _count(scores.attributes_local, steps, clusters.has_pair)
        _recall_corrected(gold[key], clusters, entities, steps, scores)
    return scores


def _pairs(step: Schema) -> set[tuple[str, str]]:
    return {(normalise(entity), normalise(attribute)) for entity, names in step.items() for attribute in names}


def _count(figures: PrecisionRecall, predicted: Sequence[Collection[Item]], right: Callable[[Item], bool]) -> None:
    figures.predicted += sum(map(len, predicted))
    figures.predicted_right += sum(right(item) for step in predicted for item in step)


def _recall_corrected(
    procedure: Procedure,
    clusters: _Clusters,
    entities: Sequence[set[str]],
    pairs: Sequence[set[tuple[str, str]]],
    scores: SchemataScores,
) -> None:
    all_entities, all_pairs = set().union(*entities), set().union(*pairs)
    for canonical, names in clusters.entities.items():
        scores.entities_global.gold += 1
        scores.entities_global.gold_found += not all_entities.isdisjoint(names)
        for attribute_names in clusters.attributes[canonical].values():
            scores.attributes_global.gold += 1
            scores.attributes_global.gold_found += _holds(all_pairs, names, attribute_names)
    for states in procedure.states:
        canonical = normalise(states.entity)
        names = clusters.entities[canonical]
        for changes, step_entities, step_pairs in zip(states.steps, entities, pairs, strict=True):
            changed = {normalise(change.attribute) for change in changes}
            scores.entities_local.gold += bool(changed)
            scores.entities_local.gold_found += bool(changed) and not step_entities.isdisjoint(names)
            scores.attributes_local.gold += len(changed)
            scores.attributes_local.gold_found += sum(
                _holds(step_pairs, names, clusters.attributes[canonical][attribute]) for attribute in changed
            )


def _holds(pairs: set[tuple[str, str]], entities: Collection[str], attributes: Collection[str]) -> bool:
    return any(entity in entities and attribute in attributes for entity, attribute in pairs)


def gold_schemata(procedure: Procedure, *, expanded: bool) -> list[list[list[str]]]:
    """By step, for each entity that changes there: every "ATTRIBUTE of ENTITY" that its clusters' names make."""
    return [
        [
            [
                f"{attribute} of {entity}"
                for change in states.steps[place]
                for entity, attribute in product(*names_of(procedure, states, change, expanded=expanded))
            ]
            for states in procedure.states
            if states.steps[place]
        ]
        for place in range(len(procedure.steps))
    ]


def schemata_result(
    gold: Mapping[str, Procedure], predictions: Mapping[str, Sequence[Schema]], scorer: Scorer | None
) -> SystemResult:
    """Scores and tables; the headline is of attributes, the paper's entity-attribute pairs.

    Args:
        gold: procedures with clusters; where these have no paraphrases, nothing is scored with expansion.
    """
    kinds = {"plain": False, **({"expanded": True} if has_expansion(gold) else {})}
    official = {name: score_schemata(gold, predictions, expanded=flag) for name, flag in kinds.items()}
    corrected = {name: score_schemata_corrected(gold, predictions, expanded=flag) for name, flag in kinds.items()}
    bert = {name: _bertscores(gold, predictions, scorer, flag) for name, flag in kinds.items()}
    headline = {
        f"schemata_{level}_f1" + "_expanded" * (name == "expanded"): getattr(figures, f"attributes_{level}").f1
        for name, figures in official.items()
        for level in ("global", "local")
    }
    detail: dict[str, Any] = {
        "procedures": len(predictions),
        "official": {name: figures.as_json() for name, figures in official.items()},
        "corrected": {name: figures.as_json() for name, figures in corrected.items()},
        "bertscore": bert,
    }
    title = f"Schemata, exact match ({scored(len(predictions), len(gold))})"
    tables = [
        Table.of(_COLUMNS, [_row(level, official, corrected) for level in _LEVELS], title),
        bertscore_table(
            "Schemata, BERTScore", [(n, bert["plain"][n], bert.get("expanded", {}).get(n)) for n in bert["plain"]]
        ),
    ]
    return SystemResult({**headline, "schemata": detail}, tables, measures=_measures(gold, predictions, kinds))


def _measures(
    gold: Mapping[str, Procedure], predictions: Mapping[str, Sequence[Schema]], kinds: Mapping[str, bool]
) -> list[Measure]:
    """F1 of attributes procedure by procedure, by both scorers and with expansion where there is one."""
    digest = digest_of(gold, predictions)
    found = []
    for scorer, after in ((score_schemata, ""), (score_schemata_corrected, ", corrected")):
        for kind, expanded in kinds.items():
            own = {key: scorer(gold, {key: steps}, expanded=expanded) for key, steps in predictions.items()}
            for level in ("global", "local"):
                name = f"schemata F1, {level}" + " + expansion" * (kind == "expanded") + after
                figures = {key: getattr(scores, f"attributes_{level}") for key, scores in own.items()}
                found += f1_measure(name, digest, figures)
    return found


def _row(
    level: str, official: Mapping[str, SchemataScores], corrected: Mapping[str, SchemataScores]
) -> tuple[str, ...]:
    plain = getattr(official["plain"], level)
    f1 = [
        cell(getattr(scores[kind], level).f1 if kind in scores else None)
        for scores in (official, corrected)
        for kind in ("plain", "expanded")
    ]
    return (level.replace("_", ", "), cell(plain.precision), cell(plain.recall), *f1)


def _bertscores(
    gold: Mapping[str, Procedure], predictions: Mapping[str, Sequence[Schema]], scorer: Scorer | None, expanded: bool
) -> dict[str, float | None]:
    """Of each predicted "ATTRIBUTE of ENTITY" the best over gold ones, of the procedure or of the step; means."""
    if scorer is None:
        return {"global": None, "local": None}
    whole: list[tuple[str, Sequence[str]]] = []
    by_step: list[tuple[str, Sequence[str]]] = []
    for key, steps in predictions.items():
        texts = [[f"{name} of {entity}" for entity, names in step.items() for name in names] for step in steps]
        gold_steps = [list(chain.from_iterable(step)) for step in gold_schemata(gold[key], expanded=expanded)]
        everything = sorted({text for step in gold_steps for text in step})
        whole += [(text, everything) for text in sorted({text for step in texts for text in step})]
        by_step += [(text, step) for listed, step in zip(texts, gold_steps, strict=True) for text in listed]
    return {"global": mean(best_scores(scorer, whole)), "local": mean(best_scores(scorer, by_step))}


class Schemata(ListingTask):
    """Entities and their attributes."""

    kind = "schemata"
    schema = dict[str, list[str]]

    def parse(self, reply: str) -> dict[str, list[str]]:
        return parse_schema(reply)

    def evaluate(self, gold: Mapping[str, Procedure], answers: Listed, options: Any, seed: int) -> SystemResult:
        return schemata_result(gold, answers, scorer_of(options))
