"""One function a task: a file of predictions and the gold file in, scores and tables out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from eval.systems.openpi2.bertscore import Scorer, bert_scorer
from eval.systems.openpi2.cluster_gold import (
    read_attribute_groups,
    read_entity_groups,
    read_predicted_attribute_groups,
    read_predicted_entity_groups,
)
from eval.systems.openpi2.clusters import clusters_result
from eval.systems.openpi2.clusters_scorer import score_attribute_clusters, score_entity_clusters
from eval.systems.openpi2.complete import complete_result
from eval.systems.openpi2.gold import read_clustered
from eval.systems.openpi2.options import ScorerOptions
from eval.systems.openpi2.pddl import pddl_result, read_pddl, read_tasks
from eval.systems.openpi2.planner import make_planner
from eval.systems.openpi2.predictions import read_schemata, read_sentences, read_states
from eval.systems.openpi2.reading import read_json
from eval.systems.openpi2.salience import salience_result
from eval.systems.openpi2.salience_gold import check_same_entities, read_salience
from eval.systems.openpi2.schemata import schemata_result
from eval.systems.openpi2.states import states_result
from eval.systems.openpi2.states_scorer import check_aligned, read_gold_states
from eval.systems.system import SystemResult


def _schemata(predictions: Path, gold: Path, options: ScorerOptions) -> SystemResult:
    procedures = read_clustered(gold)
    steps = {key: len(procedure.steps) for key, procedure in procedures.items()}
    return schemata_result(procedures, read_schemata(predictions, steps), _scorer(options))


def _complete(predictions: Path, gold: Path, options: ScorerOptions) -> SystemResult:
    procedures = read_clustered(gold)
    steps = {key: len(procedure.steps) for key, procedure in procedures.items()}
    return complete_result(procedures, read_sentences(predictions, steps), _scorer(options))


def _states(predictions: Path, gold: Path, options: ScorerOptions) -> SystemResult:
    changes = read_gold_states(gold)
    predicted = read_states(predictions, {key: len(steps) for key, steps in changes.items()})
    check_aligned(predicted, changes, predictions)
    return states_result(changes, predicted, _scorer(options))


def _salience(predictions: Path, gold: Path, options: ScorerOptions) -> SystemResult:
    human, predicted = read_salience(gold), read_salience(predictions)
    check_same_entities(human, predicted, predictions)
    return salience_result(human, None, predicted)


def _entity_clusters(predictions: Path, gold: Path, options: ScorerOptions) -> SystemResult:
    labelled = read_entity_groups(gold)
    found = score_entity_clusters(labelled, read_predicted_entity_groups(predictions, labelled))
    return clusters_result([found], [])


def _attribute_clusters(predictions: Path, gold: Path, options: ScorerOptions) -> SystemResult:
    labelled = read_attribute_groups(gold)
    found = score_attribute_clusters(labelled, read_predicted_attribute_groups(predictions, labelled))
    return clusters_result([], [found])


def _pddl(predictions: Path, gold: Path, options: ScorerOptions) -> SystemResult:
    return pddl_result(read_pddl(read_json(predictions), read_tasks(gold)), make_planner(options.planner_seconds))


def _scorer(options: ScorerOptions) -> Scorer | None:
    return None if options.bertscore_model is None else bert_scorer(options.bertscore_model, options.bertscore_layers)


SCORERS: dict[str, Callable[[Path, Path, ScorerOptions], SystemResult]] = {
    "schemata": _schemata,
    "states": _states,
    "complete": _complete,
    "salience": _salience,
    "entity_clusters": _entity_clusters,
    "attribute_clusters": _attribute_clusters,
    "pddl": _pddl,
}
