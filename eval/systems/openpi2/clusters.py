"""Canonicalisation: names of one thing are found by asking a model several times (paper section 3.1, table 2)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from d2e_sft.data.chat_template import Messages
from eval.run.engines.conversation_task import Conversation
from eval.systems.asker import Asker
from eval.systems.openpi2.cluster_gold import Groups, ToCluster
from eval.systems.openpi2.clustering import Clustering, aggregate, merge_alike, parse_groups, spread
from eval.systems.openpi2.clusters_scorer import ClusterScores
from eval.systems.openpi2.figures import Figures
from eval.systems.openpi2.gold import alternatives
from eval.systems.openpi2.tables import cell
from eval.systems.openpi2.tracking import DATASET
from eval.systems.openpi2.wording import turns, wording
from eval.systems.system import ScoreTable, SystemResult

TEMPERATURE = 0.7  # the paper's
_TOKENS = 256


def ask_entity_clusters(
    asker: Asker, procedures: Mapping[str, ToCluster], *, runs: int, repeat: int, seed: int
) -> dict[str, Clustering]:
    """One clustering of each procedure's entities from several answers; names that are alike are merged before.

    Args:
        repeat: number of the clustering; each has answers of its own.
    """
    merged = {key: merge_alike(procedure.names[""]) for key, procedure in procedures.items()}
    asked = {key: (procedure, "", list(merged[key])) for key, procedure in procedures.items() if len(merged[key]) > 1}
    answers = _ask_runs(asker, f"entity-clusters-{repeat + 1}", asked, runs, seed + repeat * runs)
    return {
        key: spread(aggregate(list(merged[key]), answers.get(key, ()), leftovers="together"), merged[key])
        for key in procedures
    }


def ask_attribute_clusters(
    asker: Asker, procedures: Mapping[str, ToCluster], *, runs: int, seed: int
) -> dict[str, dict[str, Clustering]]:
    """A clustering of the attributes of each entity; where the file has one entry, its names are one cluster."""
    names = {
        f"{key}/{entity}": [name.strip() for entry in entries for name in alternatives(entry)]
        for key, procedure in procedures.items()
        for entity, entries in procedure.names.items()
    }
    asked = {
        f"{key}/{entity}": (procedure, alternatives(entity)[0], names[f"{key}/{entity}"])
        for key, procedure in procedures.items()
        for entity, entries in procedure.names.items()
        if len(entries) > 1
    }
    answers = _ask_runs(asker, "attribute-clusters", asked, runs, seed)

    def clustering(name: str) -> Clustering:
        if name in answers:
            return aggregate(names[name], answers[name], leftovers="apart")
        return [names[name]] if names[name] else []

    return {
        key: {entity: clustering(f"{key}/{entity}") for entity in procedure.names}
        for key, procedure in procedures.items()
    }


def _ask_runs(
    asker: Asker, name: str, asked: Mapping[str, tuple[ToCluster, str, list[str]]], runs: int, seed: int
) -> dict[str, list[list[tuple[str, ...]]]]:
    conversations = [
        Conversation(DATASET, key, cluster_prompt(*item), cluster_prompt(*item, hidden=True), group=name)
        for key, item in asked.items()
    ]
    answers: dict[str, list[list[tuple[str, ...]]]] = {key: [] for key in asked}
    for run in range(runs):
        outputs = asker.ask(
            f"{name}-run{run + 1}", conversations, max_new_tokens=_TOKENS, temperature=TEMPERATURE, seed=seed + run
        )
        for key, output in zip(asked, outputs, strict=True):
            answers[key].append(parse_groups(output))
    return answers


def cluster_prompt(procedure: ToCluster, entity: str, names: Sequence[str], *, hidden: bool = False) -> Messages:
    """Three solved examples, then the procedure's names; of its attributes where an entity is named."""
    told = wording("clusters")
    texts: list[str] = []
    for example in told["attribute_examples" if entity else "entity_examples"]:
        shown = [name for group in example["groups"] for name in sorted(group)]
        texts += [
            context(example["goal"], example["steps"]),
            told["accept"],
            _request(shown, example.get("entity", "")),
        ]
        texts.append(told["groups"].format(lines="\n".join(f"- {group}" for group in example["groups"])))
    own = told["hidden_context"] if hidden else context(procedure.goal, procedure.steps)
    return turns(*texts, own, told["accept"], _request(names, entity))


def context(goal: str, steps: Sequence[str]) -> str:
    """Goal and steps as told by somebody who wants to do it."""
    told = wording("clusters")
    lines = [
        told["then" if place else "first"].format(step=step[:1].lower() + step[1:]) for place, step in enumerate(steps)
    ]
    text: str = told["context"].format(goal=goal.lower(), steps=" ".join(lines))
    return text


def _request(names: Sequence[str], entity: str) -> str:
    told = wording("clusters")
    listed = ", ".join(repr(name) for name in names)
    text: str = told["attributes" if entity else "entities"].format(entity=entity, names=listed)
    return text


def as_groups(clusters: Clustering) -> Groups:
    """A clustering as the scorer takes it."""
    return tuple(map(tuple, clusters))


def entity_file(predictions: Mapping[str, Clustering]) -> str:
    """Entity clusters in the official form."""
    return _text({key: {cluster[0]: cluster for cluster in clusters} for key, clusters in predictions.items()})


def attribute_file(predictions: Mapping[str, Mapping[str, Clustering]]) -> str:
    """Attribute clusters in the official form: the first name, and the others, or itself where it is alone."""
    return _text(
        {
            key: {
                entity: {cluster[0]: cluster[1:] or cluster for cluster in clusters}
                for entity, clusters in entities.items()
            }
            for key, entities in predictions.items()
        }
    )


def clusters_result(entities: Sequence[ClusterScores], attributes: Sequence[ClusterScores]) -> SystemResult:
    """Scores and table; of several clusterings the mean of each figure."""
    rows, detail, headline = [], {}, {}
    for what, found in (("entities", entities), ("attributes", attributes)):
        if not found:
            continue
        kinds = {"official": [item.official for item in found], "corrected": [item.corrected for item in found]}
        detail[what] = {name: [figures.as_json() for figures in items] for name, items in kinds.items()}
        for name, items in kinds.items():
            precision, recall, f1 = (_mean(items, figure) for figure in ("precision", "recall", "f1"))
            rows.append((f"{what}, {name}", cell(precision), cell(recall), cell(f1), str(len(items))))
        headline[f"{what}_cluster_f1"] = _mean(kinds["official"], "f1")
    title = "Clusters, exact match (officially precision and recall have their names swapped)"
    table = ScoreTable(title, ("of", "precision", "recall", "F1", "mean of"), rows)
    return SystemResult({**headline, "clusters": detail}, [table])


def _mean(items: Iterable[Figures], figure: str) -> float:
    values = [getattr(item, figure) for item in items]
    return float(sum(values) / len(values))


def _text(content: Any) -> str:
    return json.dumps(content, indent=4, ensure_ascii=False) + "\n"
