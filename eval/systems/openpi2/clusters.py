"""Clusters: which names mean the same, by asking a model several times (paper section 3.1, table 2).

The answers make one clustering, greedily by how often a cluster was given. It is scored by exact match of sets against
ten procedures that were labelled by hand; predicted names that the labels lack are dropped first. Officially "recall"
is the share of predicted clusters that are gold ones over the number of *gold* clusters, and "precision" the share of
gold clusters that were predicted over the number of *predicted* ones; the two matched counts differ only where a
cluster is there twice, but the names are swapped. The corrected figures have the usual names, drop clusters that are
empty, and count each once.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import AliasChoices, Field, field_validator

from d2e_sft.data.chat_template import Messages
from d2e_sft.util.table import Table
from eval.compare.measures.measure import Measure, digest
from eval.systems.asker import Asker
from eval.systems.conversations import turns, wording
from eval.systems.json_file import Row, check_ids
from eval.systems.openpi2.gold import alternatives, normalise, official_text, read_official
from eval.systems.openpi2.metrics import PrecisionRecall, cell, f1_measure, mean
from eval.systems.openpi2.task import AttributeForm, OpenPIOptions, Task, conversation, drawn
from eval.systems.score_files import file_in
from eval.systems.system import SystemCall, SystemResult

ENTITY_INPUT, ENTITY_GOLD = "dev_data_mini_entity.json", "dev_data_mini_annotated_entity.json"
ATTRIBUTE_INPUT, ATTRIBUTE_GOLD = "dev_data_mini_attr.json", "dev_data_mini_annotated_attr.json"
_WORDING: Any = wording("openpi2/prompts/clusters")
TEMPERATURE = 0.7  # the paper's
_TOKENS = 256
Kind = Literal["entities", "attributes"]
Clustering = list[list[str]]
# By procedure and entity the clusters of its attributes; those of the entities themselves are under the empty name.
Groups = Mapping[str, Mapping[str, Sequence[Sequence[str]]]]


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


@dataclass
class ClusterScores:
    """Figures by their usual names; what `official` has as its `precision` is officially called so, too."""

    official: PrecisionRecall
    corrected: PrecisionRecall


def read_to_cluster(path: Path) -> dict[str, ToCluster]:
    """Read each procedure's entity mentions, each once, or the attribute mentions of its entities.

    Raises:
        UserError: the file is missing or damaged; so do the other readers.
    """
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
    """Read predicted clusters, in the official form.

    Of entities it is {procedure: {first name: [names]}}, of attributes {procedure: {entity: {name: [further names]}}}.

    Args:
        form: concise attributes end with " of ENTITY", which is left out.

    Raises:
        UserError: as above, or the file names a procedure or an entity that is not in the gold file.
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
    """What a concise attribute has behind its name: the first mention of its entity."""
    return f" of {alternatives(entity)[0].strip()}" if form == "concise" else ""


def _stripped(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(text.strip() for text in texts)


def ask_entity_clusters(
    asker: Asker, procedures: Mapping[str, ToCluster], *, runs: int, repeat: int, seed: int
) -> dict[str, dict[str, Clustering]]:
    """One clustering of each procedure's entities from several answers; names that are alike are merged before.

    Args:
        repeat: number of the clustering; each has answers of its own.
    """
    merged = {key: merge_alike(procedure.names[""]) for key, procedure in procedures.items()}
    asked = {key: (procedure, "", list(merged[key])) for key, procedure in procedures.items() if len(merged[key]) > 1}
    answers = _ask_runs(asker, f"entity-clusters-{repeat + 1}", asked, runs, seed + repeat * runs)
    return {
        key: {"": spread(aggregate(list(merged[key]), answers.get(key, ()), leftovers="together"), merged[key])}
        for key in procedures
    }


def ask_attribute_clusters(
    asker: Asker, procedures: Mapping[str, ToCluster], *, runs: int, seed: int, form: AttributeForm = "vanilla"
) -> dict[str, dict[str, Clustering]]:
    """A clustering of the attributes of each entity; where the file has one entry, its names are one cluster.

    Args:
        form: concise attributes are told, and sorted by the model, as ATTRIBUTE of ENTITY.
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

    def clustering(name: str, end: str) -> Clustering:
        if name in answers:
            clusters = aggregate([text + end for text in names[name]], answers[name], leftovers="apart")
            return [[text.removesuffix(end) for text in cluster] for cluster in clusters]
        return [names[name]] if names[name] else []

    return {
        key: {entity: clustering(f"{key}/{entity}", suffix(entity, form)) for entity in procedure.names}
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
            answers[key].append(parse_groups(output))
    return answers


def cluster_prompt(
    procedure: ToCluster, entity: str, names: Sequence[str], form: AttributeForm = "vanilla", *, hidden: bool = False
) -> Messages:
    """Three solved examples, then the procedure's names; of its attributes, in a form, where an entity is named."""
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
    """Goal and steps as told by somebody who wants to do it."""
    lines = [
        _WORDING["then" if place else "first"].format(step=step[:1].lower() + step[1:])
        for place, step in enumerate(steps)
    ]
    text: str = _WORDING["context"].format(goal=goal.lower(), steps=" ".join(lines))
    return text


def _request(names: Sequence[str], entity: str) -> str:
    listed = ", ".join(repr(name) for name in names)
    text: str = _WORDING["attributes" if entity else "entities"].format(entity=entity, names=listed)
    return text


def parse_groups(reply: str) -> list[tuple[str, ...]]:
    """The groups of a reply, each a list in brackets on a line of its own; a line that is none gives no group."""
    groups = []
    for line in reply.splitlines():
        start = line.find("[")
        if start >= 0:
            groups.append(_list(line[start:].strip()))
    return [group for group in groups if group]


def _list(text: str) -> tuple[str, ...]:
    # An answer that was cut off may lack its last bracket, and one that goes on have a comma after it.
    for candidate in (text, text.rstrip(",."), text.rstrip(",") + "]", text + "']"):
        try:
            value = ast.literal_eval(candidate)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return tuple(value)
    return ()


def aggregate(names: Sequence[str], answers: Iterable[Sequence[tuple[str, ...]]], *, leftovers: str) -> Clustering:
    """One clustering of the names from the groups of several answers (paper section 3.1, footnote 3).

    The group given most often is taken first, then the next of which no name is taken yet; order among names matters
    not. Groups with other names are passed over. Ties: the one met first.

    Args:
        leftovers: what becomes of names in no group: `together` makes one cluster of them, as the official script does
            to entities, `apart` one of each, as it does to attributes.
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
    """Names that differ by article, letter case or a plural ending alone, by the first of them."""
    first: dict[str, str] = {}
    merged: dict[str, list[str]] = {}
    for name in names:
        kept = first.setdefault(_singular(normalise(name.strip())), name)
        merged.setdefault(kept, []).append(name)
    return merged


def spread(clusters: Clustering, merged: dict[str, list[str]]) -> Clustering:
    """The clustering of all names from that of the first of each."""
    return [[name for first in cluster for name in merged[first]] for cluster in clusters]


def _singular(name: str) -> str:
    if name.endswith("ss") or len(name) <= 4:
        return name
    return name[:-3] + "y" if name.endswith("ies") else name.removesuffix("s")


def score_clusters(gold: Groups, predictions: Groups) -> ClusterScores:
    """Clusters of all procedures together; entities whose attributes have one gold cluster are skipped."""
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


def clusters_file(predictions: Mapping[str, Mapping[str, Clustering]], kind: Kind) -> str:
    """The official form; of a cluster of attributes it has the first name, and the others, or itself where alone."""
    if kind == "entities":
        return official_text({key: {group[0]: group for group in found[""]} for key, found in predictions.items()})
    return official_text(
        {
            key: {entity: {group[0]: group[1:] or group for group in groups} for entity, groups in entities.items()}
            for key, entities in predictions.items()
        }
    )


def clusters_result(scores: Mapping[Kind, Sequence[ClusterScores]]) -> SystemResult:
    """Scores and table; of several clusterings the mean of each figure."""
    rows, detail, headline = [], {}, {}
    for what, found in scores.items():
        kinds = {"official": [item.official for item in found], "corrected": [item.corrected for item in found]}
        detail[what] = {name: [figures.as_json() for figures in items] for name, items in kinds.items()}
        for name, items in kinds.items():
            figures = (_mean(items, figure) for figure in ("precision", "recall", "f1"))
            rows.append((f"{what}, {name}", *map(cell, figures), str(len(items))))
        headline[f"{what}_cluster_f1"] = _mean(kinds["official"], "f1")
    title = "Clusters, exact match (officially precision and recall have their names swapped)"
    table = Table.of(("of", "precision", "recall", "F1", "mean of"), rows, title)
    return SystemResult({**headline, "clusters": detail}, [table])


def _measures(kind: Kind, gold: Groups, predictions: Groups) -> list[Measure]:
    """F1 procedure by procedure, by both scorers."""
    own = {key: score_clusters(gold, {key: groups}) for key, groups in predictions.items()}
    about = digest([[key, dict(gold[key])] for key in sorted(predictions)])
    official, corrected = (
        {key: getattr(found, name) for key, found in own.items()} for name in ("official", "corrected")
    )
    name = f"{kind}, cluster F1"
    return [*f1_measure(name, about, official), *f1_measure(f"{name}, corrected", about, corrected)]


def _mean(items: Iterable[PrecisionRecall], figure: str) -> float:
    return mean(getattr(item, figure) for item in items)


class EntityClusters(Task[Groups, Groups]):
    """Clusters of entities."""

    kind = "entity_clusters"
    official = (ENTITY_GOLD,)
    names: ClassVar[Kind] = "entities"

    def prediction_files(self, options: Any) -> Sequence[str]:
        # A run keeps each of its clusterings of entities.
        return ("entity_clusters_*.json",) if self.names == "entities" else super().prediction_files(options)

    def read_gold(self, path: Path, options: Any) -> Groups:
        return read_gold_groups(path)

    def read_predictions(self, path: Path, gold: Groups, options: Any) -> Groups:
        return read_predicted_groups(path, gold, self.names, options.attribute_form)

    def evaluate(self, gold: Groups, answers: Groups, options: Any, seed: int) -> SystemResult:
        result = clusters_result({self.names: [score_clusters(gold, answers)]})
        return replace(result, measures=_measures(self.names, gold, answers))

    def template(self, gold: Groups, options: Any) -> Iterator[dict[str, Any]]:
        """One line per name, in alphabetical order, because the gold file's order shows the clusters."""
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
        gold = read_gold_groups(entity_gold), read_gold_groups(attribute_gold)
        entities = drawn(call, read_to_cluster(entity_input))
        attributes = drawn(call, read_to_cluster(attribute_input))
        files, entity_scores = {}, []
        for repeat in range(own.repeats):
            found = ask_entity_clusters(asker, entities, runs=own.entity_runs, repeat=repeat, seed=call.seed)
            entity_scores.append(score_clusters(gold[0], found))
            files[f"entity_clusters_{repeat + 1}.json"] = clusters_file(found, "entities")
        form = own.attribute_form
        found = ask_attribute_clusters(asker, attributes, runs=own.attribute_runs, seed=call.seed, form=form)
        files["attribute_clusters.json"] = clusters_file(found, "attributes")
        result = clusters_result({"entities": entity_scores, "attributes": [score_clusters(gold[1], found)]})
        # The score of entities is a mean of several clusterings, which has no counts of its own.
        return replace(result, files=files, measures=_measures("attributes", gold[1], found))
