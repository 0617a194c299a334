"""Clusters: which names mean the same, by asking a model several times (paper section 3.1, table 2)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from d2e_sft.data.chat_template import Messages
from d2e_sft.util.table import Table
from eval.compare.measures.measure import Measure, digest
from eval.systems.asker import Asker
from eval.systems.conversations import turns, wording
from eval.systems.files import file_in
from eval.systems.openpi2 import clustering
from eval.systems.openpi2.clustering import Clustering, ClusterScores, Groups, Kind, ToCluster, score_clusters, suffix
from eval.systems.openpi2.gold import alternatives
from eval.systems.openpi2.metrics import cell, f1_measure, mean
from eval.systems.openpi2.task import AttributeForm, OpenPIOptions, Task, conversation, drawn
from eval.systems.system import SystemCall, SystemResult

ENTITY_INPUT, ENTITY_GOLD = "dev_data_mini_entity.json", "dev_data_mini_annotated_entity.json"
ATTRIBUTE_INPUT, ATTRIBUTE_GOLD = "dev_data_mini_attr.json", "dev_data_mini_annotated_attr.json"
_WORDING: Any = wording("openpi2/prompts/clusters")
TEMPERATURE = 0.7  # the paper's
_TOKENS = 256


def ask_entity_clusters(
    asker: Asker, procedures: Mapping[str, ToCluster], *, runs: int, repeat: int, seed: int
) -> dict[str, dict[str, Clustering]]:
    """Cluster each procedure's entities by several answers, which are `repeat`'s own; names alike are merged first."""
    merged = {key: clustering.merge_alike(procedure.names[""]) for key, procedure in procedures.items()}
    asked = {key: (procedure, "", list(merged[key])) for key, procedure in procedures.items() if len(merged[key]) > 1}
    answers = _ask_runs(asker, f"entity-clusters-{repeat + 1}", asked, runs, seed + repeat * runs)
    found = {
        key: clustering.aggregate(list(names), answers.get(key, ()), leftovers="together")
        for key, names in merged.items()
    }
    return {key: {"": clustering.spread(own, merged[key])} for key, own in found.items()}


def ask_attribute_clusters(
    asker: Asker, procedures: Mapping[str, ToCluster], *, runs: int, seed: int, form: AttributeForm = "vanilla"
) -> dict[str, dict[str, Clustering]]:
    """Cluster the attributes of each entity; if the file has one entry, its names are one cluster.

    In the form concise they are shown to the model as ATTRIBUTE of ENTITY.
    """
    names = {
        f"{key}/{entity}": [name.strip() for entry in entries for name in alternatives(entry)]
        for key, procedure in procedures.items()
        for entity, entries in procedure.names.items()
    }
    asked = {
        f"{key}/{entity}": (procedure, alternatives(entity)[0], names[f"{key}/{entity}"], form)
        for key, procedure in procedures.items()
        for entity, entries in procedure.names.items()
        if len(entries) > 1
    }
    answers = _ask_runs(asker, "attribute-clusters", asked, runs, seed)

    def joined(name: str, end: str) -> Clustering:
        if name in answers:
            clusters = clustering.aggregate([text + end for text in names[name]], answers[name], leftovers="apart")
            return [[text.removesuffix(end) for text in cluster] for cluster in clusters]
        return [names[name]] if names[name] else []

    return {
        key: {entity: joined(f"{key}/{entity}", suffix(entity, form)) for entity in procedure.names}
        for key, procedure in procedures.items()
    }


def _ask_runs(
    asker: Asker, name: str, asked: Mapping[str, tuple[Any, ...]], runs: int, seed: int
) -> dict[str, list[list[tuple[str, ...]]]]:
    conversations = [conversation(key, cluster_prompt, *item, group=name) for key, item in asked.items()]
    answers: dict[str, list[list[tuple[str, ...]]]] = {key: [] for key in asked}
    for run in range(runs):
        outputs = asker.ask(
            f"{name}-run{run + 1}", conversations, max_new_tokens=_TOKENS, temperature=TEMPERATURE, seed=seed + run
        )
        for key, output in zip(asked, outputs, strict=True):
            answers[key].append(clustering.parse_groups(output))
    return answers


def cluster_prompt(
    procedure: ToCluster, entity: str, names: Sequence[str], form: AttributeForm = "vanilla", *, hidden: bool = False
) -> Messages:
    """Show three solved examples, then the procedure's names; attributes if an entity is named."""
    texts: list[str] = []
    for example in _WORDING["attribute_examples" if entity else "entity_examples"]:
        end = suffix(example.get("entity", ""), form)
        groups = [[name + end for name in group] for group in example["groups"]]
        shown = [name for group in groups for name in sorted(group)]
        texts += [context(example["goal"], example["steps"]), _WORDING["accept"]]
        texts += [_request(shown, example.get("entity", ""))]
        texts += [_WORDING["groups"].format(lines="\n".join(f"- {group}" for group in groups))]
    own = _WORDING["hidden_context"] if hidden else context(procedure.goal, procedure.steps)
    named = [name + suffix(entity, form) for name in names]
    return turns(*texts, own, _WORDING["accept"], _request(named, entity))


def context(goal: str, steps: Sequence[str]) -> str:
    """Return goal and steps in the words of somebody who wants to do it."""
    lines = [
        _WORDING["then" if place else "first"].format(step=step[:1].lower() + step[1:])
        for place, step in enumerate(steps)
    ]
    return str(_WORDING["context"].format(goal=goal.lower(), steps=" ".join(lines)))


def _request(names: Sequence[str], entity: str) -> str:
    listed = ", ".join(repr(name) for name in names)
    return str(_WORDING["attributes" if entity else "entities"].format(entity=entity, names=listed))


def clusters_result(scores: Mapping[Kind, Sequence[ClusterScores]]) -> SystemResult:
    """Return scores and table, with the mean of each figure over several clusterings."""
    rows, detail, headline = [], {}, {}
    for what, found in scores.items():
        kinds = {"official": [item.official for item in found], "corrected": [item.corrected for item in found]}
        detail[what] = {name: [figures.as_json() for figures in items] for name, items in kinds.items()}
        for name, items in kinds.items():
            figures = [mean(getattr(item, figure) for item in items) for figure in ("precision", "recall", "f1")]
            rows.append((f"{what}, {name}", *map(cell, figures), str(len(items))))
        headline[f"{what}_cluster_f1"] = mean(item.f1 for item in kinds["official"])
    title = "Clusters, exact match (officially precision and recall have their names swapped)"
    table = Table.of(("of", "precision", "recall", "F1", "mean of"), rows, title)
    return SystemResult({**headline, "clusters": detail}, [table])


def _measures(kind: Kind, gold: Groups, predictions: Groups) -> list[Measure]:
    """Return F1 procedure by procedure, by both scorers."""
    own = {key: score_clusters(gold, {key: groups}) for key, groups in predictions.items()}
    about = digest([[key, dict(gold[key])] for key in sorted(predictions)])
    official, corrected = ({key: getattr(one, name) for key, one in own.items()} for name in ("official", "corrected"))
    name = f"{kind}, cluster F1"
    return [*f1_measure(name, about, official), *f1_measure(f"{name}, corrected", about, corrected)]


class EntityClusters(Task[Groups, Groups]):
    """Clusters of entities."""

    kind = "entity_clusters"
    official = (ENTITY_GOLD,)
    names: ClassVar[Kind] = "entities"

    def prediction_files(self, options: Any) -> Sequence[str]:
        # A run keeps each of its clusterings of entities.
        return ("entity_clusters_*.json",) if self.names == "entities" else super().prediction_files(options)

    def read_gold(self, path: Path, options: Any) -> Groups:
        return clustering.read_gold_groups(path)

    def read_predictions(self, path: Path, gold: Groups, options: Any) -> Groups:
        return clustering.read_predicted_groups(path, gold, self.names, options.attribute_form)

    def evaluate(self, gold: Groups, answers: Groups, options: Any, seed: int) -> SystemResult:
        result = clusters_result({self.names: [score_clusters(gold, answers)]})
        return replace(result, measures=_measures(self.names, gold, answers))

    def template(self, gold: Groups, options: Any) -> Iterator[dict[str, Any]]:
        """Return one line per name, in alphabetical order, because the gold file's order shows the clusters."""
        of_entities = self.names == "entities"
        for key, groups in gold.items():
            for entity, clusters in groups.items():
                about = {"procedure": key} if of_entities else {"procedure": key, "entity": entity}
                for name in sorted({name for names in clusters for name in names}):
                    yield {**about, "name" if of_entities else "attribute": name, "cluster": ""}


class AttributeClusters(EntityClusters):
    """Clusters of attributes."""

    kind = "attribute_clusters"
    official = (ATTRIBUTE_GOLD,)
    names = "attributes"


class Clusters(Task[Groups, Groups]):
    """Both kinds of clusters, asked for in one run."""

    def run(self, call: SystemCall, asker: Asker) -> SystemResult:
        """Cluster entities several times, and attributes once; the scores of entities are averaged."""
        own: OpenPIOptions = call.options
        entity_input, entity_gold, attribute_input, attribute_gold = (
            file_in(call.data, [name], "--data", f"the official files (get them: {self.obtain})")
            for name in (ENTITY_INPUT, ENTITY_GOLD, ATTRIBUTE_INPUT, ATTRIBUTE_GOLD)
        )
        gold = clustering.read_gold_groups(entity_gold), clustering.read_gold_groups(attribute_gold)
        entities = drawn(call, clustering.read_to_cluster(entity_input))
        attributes = drawn(call, clustering.read_to_cluster(attribute_input))
        files, entity_scores = {}, []
        for repeat in range(own.repeats):
            found = ask_entity_clusters(asker, entities, runs=own.entity_runs, repeat=repeat, seed=call.seed)
            entity_scores.append(score_clusters(gold[0], found))
            files[f"entity_clusters_{repeat + 1}.json"] = clustering.clusters_file(found, "entities")
        form = own.attribute_form
        found = ask_attribute_clusters(asker, attributes, runs=own.attribute_runs, seed=call.seed, form=form)
        files["attribute_clusters.json"] = clustering.clusters_file(found, "attributes")
        result = clusters_result({"entities": entity_scores, "attributes": [score_clusters(gold[1], found)]})
        # The score of entities is a mean of several clusterings, which has no counts of its own.
        return replace(result, files=files, measures=_measures("attributes", gold[1], found))
