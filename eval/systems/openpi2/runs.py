"""One function a task: official files and a model in, scores, tables and predictions out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from d2e_sft.util.errors import UserError
from eval.systems.asker import Asker
from eval.systems.openpi2 import clusters, expansion, pddl, salience
from eval.systems.openpi2.bertscore import Scorer, bert_scorer
from eval.systems.openpi2.cluster_gold import (
    ATTRIBUTE_GOLD,
    ATTRIBUTE_INPUT,
    ENTITY_GOLD,
    ENTITY_INPUT,
    read_attribute_groups,
    read_attributes_to_cluster,
    read_entities_to_cluster,
    read_entity_groups,
)
from eval.systems.openpi2.clusters_scorer import score_attribute_clusters, score_entity_clusters
from eval.systems.openpi2.complete import complete_result
from eval.systems.openpi2.crepe_data import read_crepe
from eval.systems.openpi2.crepe_downstream import ask_setting, downstream_result, prompt_length
from eval.systems.openpi2.entity_states import ask_entity_states, crepe_entities_file, salient
from eval.systems.openpi2.gold import CLUSTERED, EXPANDED, RANKED, read_clustered, read_procedures
from eval.systems.openpi2.official_files import find_official, look_for
from eval.systems.openpi2.options import OpenPIOptions
from eval.systems.openpi2.parse import parse_schema, parse_sentences
from eval.systems.openpi2.planner import make_planner
from eval.systems.openpi2.predictions import as_text
from eval.systems.openpi2.salience_gold import HUMAN, JUDGED, SECOND_HUMAN, read_salience
from eval.systems.openpi2.schemata import schemata_result
from eval.systems.openpi2.states import states_result
from eval.systems.openpi2.states_scorer import states_by_step
from eval.systems.openpi2.tracking import ask_listing, ask_states
from eval.systems.system import SystemCall, SystemResult

Item = TypeVar("Item")


def run_schemata(call: SystemCall, asker: Asker) -> SystemResult:
    """Ask for schemata and score them, with expansion where the expanded file is there."""
    own: OpenPIOptions = call.options
    gold, scorer = read_clustered(clustered_file(call, "task=schemata")), _scorer(own)
    asked = _some(call, gold)
    replies = ask_listing(asker, "schemata", own.prompt, asked.values(), temperature=own.temperature, seed=call.seed)
    predictions = {key: list(map(parse_schema, said)) for key, said in replies.items()}
    result = schemata_result(gold, predictions, scorer)
    return replace(result, files={"schemata.json": as_text(predictions)})


def run_states(call: SystemCall, asker: Asker) -> SystemResult:
    """Ask for the states of each gold change of the ranked file and score them."""
    own: OpenPIOptions = call.options
    gold = read_procedures(find_official(call.data, RANKED, needed_by="task=states"))
    scorer = _scorer(own)
    predictions = ask_states(asker, own.prompt, _some(call, gold), temperature=own.temperature, seed=call.seed)
    by_step = {key: states_by_step(procedure) for key, procedure in gold.items()}
    result = states_result(by_step, predictions, scorer, call.seed)
    return replace(result, files={"states.json": as_text(predictions)})


def run_complete(call: SystemCall, asker: Asker) -> SystemResult:
    """Ask for complete sentences and score them."""
    own: OpenPIOptions = call.options
    gold, scorer = read_clustered(clustered_file(call, "task=complete")), _scorer(own)
    asked = _some(call, gold)
    replies = ask_listing(asker, "complete", own.prompt, asked.values(), temperature=own.temperature, seed=call.seed)
    predictions = {key: list(map(parse_sentences, said)) for key, said in replies.items()}
    result = complete_result(gold, predictions, scorer)
    return replace(result, files={"complete.json": as_text(predictions)})


def run_salience(call: SystemCall, asker: Asker) -> SystemResult:
    """Ask for the salience of the entities of procedures 1 to 20, and compare with people's."""
    own: OpenPIOptions = call.options
    path = find_official(call.data, HUMAN, needed_by="task=salience")
    second = look_for(call.data, SECOND_HUMAN)
    procedures = {key: item for key, item in read_procedures(path).items() if key in JUDGED}
    predictions = salience.predict_salience(
        asker, _some(call, procedures), temperature=own.temperature, seed=call.seed
    )
    result = salience.salience_result(read_salience(path), read_salience(second) if second else None, predictions)
    return replace(result, files={"salience.json": salience.salience_file(path, predictions)})


def run_clusters(call: SystemCall, asker: Asker) -> SystemResult:
    """Ask for clusters of entities and of attributes, and compare with the labelled ones."""
    own: OpenPIOptions = call.options
    paths = [
        find_official(call.data, name, needed_by="task=clusters")
        for name in (ENTITY_INPUT, ENTITY_GOLD, ATTRIBUTE_INPUT, ATTRIBUTE_GOLD)
    ]
    entity_gold, attribute_gold = read_entity_groups(paths[1]), read_attribute_groups(paths[3])
    entities = _some(call, read_entities_to_cluster(paths[0]))
    attributes = _some(call, read_attributes_to_cluster(paths[2]))
    files, entity_scores = {}, []
    for repeat in range(own.repeats):
        found = clusters.ask_entity_clusters(asker, entities, runs=own.entity_runs, repeat=repeat, seed=call.seed)
        groups = {key: clusters.as_groups(item) for key, item in found.items()}
        entity_scores.append(score_entity_clusters(entity_gold, groups))
        files[f"entity_clusters_{repeat + 1}.json"] = clusters.entity_file(found)
    of_attributes = clusters.ask_attribute_clusters(asker, attributes, runs=own.attribute_runs, seed=call.seed)
    grouped = {
        key: {entity: clusters.as_groups(item) for entity, item in by_entity.items()}
        for key, by_entity in of_attributes.items()
    }
    files["attribute_clusters.json"] = clusters.attribute_file(of_attributes)
    result = clusters.clusters_result(entity_scores, [score_attribute_clusters(attribute_gold, grouped)])
    return replace(result, files=files)


def run_expansion(call: SystemCall, asker: Asker) -> SystemResult:
    """Ask for paraphrases of every cluster."""
    own: OpenPIOptions = call.options
    path = clustered_file(call, "task=expansion")
    gold = read_clustered(path)
    found = expansion.ask_expansion(asker, _some(call, gold), runs=own.expansion_runs, seed=call.seed)
    result = expansion.expansion_result(gold, found)
    return replace(result, files={"expanded.json": expansion.expanded_file(path, found)})


def run_crepe(call: SystemCall, asker: Asker) -> SystemResult:
    """Ask about CREPE's events with no, all and salient entity states; the states are kept for `--bench crepe`."""
    own: OpenPIOptions = call.options
    if own.crepe_file is None:
        raise UserError(
            "task=crepe: needs CREPE's data file, and none is named",
            remedy="add --set crepe_file=PATH/data_dev_v2.json, of github.com/zharry29/"
            "causal_reasoning_of_entities_and_events",
        )
    sampling: dict[str, Any] = {"temperature": own.temperature, "seed": call.seed}
    procedures = _some(call, read_crepe(own.crepe_file))
    length, unit = prompt_length(asker)
    plain = {key: item.procedure for key, item in procedures.items()}
    everything, other = ask_entity_states(asker, own.prompt, plain, with_salience=True, **sampling)
    kept = salient(everything, own.salient)
    settings = [
        ask_setting(asker, name, procedures, states, length, **sampling)
        for name, states in (("none", None), ("all", everything), ("salient", kept))
    ]
    result = _with_other_lines(downstream_result(procedures, settings, unit), other)
    return replace(
        result,
        files={
            "entities-all.json": crepe_entities_file(everything),
            "entities-salient.json": crepe_entities_file(kept),
        },
    )


def run_pddl(call: SystemCall, asker: Asker) -> SystemResult:
    """Ask for planning domains and problems, and have a planner judge them."""
    own: OpenPIOptions = call.options
    planner = make_planner(own.planner_seconds)
    sampling: dict[str, Any] = {"temperature": own.temperature, "seed": call.seed}
    tasks = _some(call, pddl.read_tasks(own.pddl_file or pddl.OWN_PROCEDURES))
    states, other = None, 0
    if own.entities != "none":
        procedures = {key: task.procedure for key, task in tasks.items()}
        only = own.entities == "salient"
        states, other = ask_entity_states(asker, own.prompt, procedures, with_salience=only, **sampling)
        states = salient(states, own.salient) if only else states
    written = pddl.ask_pddl(asker, tasks, states, **sampling)
    files = {"pddl.json": pddl.pddl_file(written), "pddl_tasks.json": pddl.tasks_file(tasks)}
    return replace(_with_other_lines(pddl.pddl_result(written, planner), other), files=files)


def _with_other_lines(result: SystemResult, count: int) -> SystemResult:
    """The result with how many lines of the predicted entity states could not be told to anyone."""
    told = f"lines of the predicted entity states that are no state change, and are left out: {count}"
    first = replace(result.tables[0], title=f"{result.tables[0].title}; {told}") if count else result.tables[0]
    return replace(
        result,
        scores={**result.scores, "lines_that_are_no_state_change": count},
        tables=[first, *result.tables[1:]],
    )


def clustered_file(call: SystemCall, needed_by: str) -> Path:
    """The expanded file where it is there, since it has the clusters without paraphrases, too; else the other."""
    return look_for(call.data, EXPANDED) or find_official(call.data, CLUSTERED, needed_by=needed_by)


def _scorer(own: OpenPIOptions) -> Scorer | None:
    # Made before anything is asked: a scorer that cannot be loaded must not cost an hour of answers first.
    return None if own.bertscore_model is None else bert_scorer(own.bertscore_model, own.bertscore_layers)


def _some(call: SystemCall, items: dict[str, Item]) -> dict[str, Item]:
    return {key: items[key] for key in call.drawn(list(items))}


RUNS: dict[str, tuple[Callable[[SystemCall, Asker], SystemResult], ...]] = {
    "all": (run_schemata, run_states, run_complete),
    "schemata": (run_schemata,),
    "states": (run_states,),
    "complete": (run_complete,),
    "salience": (run_salience,),
    "clusters": (run_clusters,),
    "expansion": (run_expansion,),
    "crepe": (run_crepe,),
    "pddl": (run_pddl,),
}
