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
from functools import partial
from pathlib import Path
from typing import Any, Literal

from d2e_sft.data.chat_template import Messages
from d2e_sft.util.errors import UserError
from d2e_sft.util.table import Table
from eval.compare.measures.measure import Measure, digest
from eval.systems.asker import Asker
from eval.systems.conversations import turns, wording
from eval.systems.openpi2.gold import alternatives, find_official, normalise, official_text, read_official
from eval.systems.openpi2.metrics import PrecisionRecall, cell, f1_measure, mean
from eval.systems.openpi2.task import AttributeForm, OpenPIOptions, ScorerOptions, Task, conversation, drawn
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


@dataclass(frozen=True)
class ToCluster:
    """A procedure with names to be clustered.

    Attributes:
        names: entity mentions under one empty key; or by entity the entries of its attributes, each one or several
            mentions with ` | ` between them.
    """

    id: str
    goal: str
    steps: tuple[str, ...]
    names: Mapping[str, tuple[str, ...]]


@dataclass
class ClusterScores:
    """Figures by their usual names; what `official` has as its `precision` is officially called so, too."""

    official: PrecisionRecall
    corrected: PrecisionRecall


def read_to_cluster(path: Path, kind: Kind) -> dict[str, ToCluster]:
    """Each procedure's entity mentions, each once, or the attribute mentions of its entities.

    Raises:
        UserError: the file is missing or damaged; so do the other readers.
    """
    found = {}
    for key, node in read_official(path).members():
        if kind == "entities":
            names = {"": tuple(dict.fromkeys(node["entities_flattened"].texts()))}
        else:
            names = {entity: groups.texts() for entity, groups in node["entity_attr_dict"].members()}
        found[key] = ToCluster(key, node["goal"].text(), node["steps"].texts(), names)
    return found


def read_gold_groups(path: Path, kind: Kind) -> Groups:
    """Gold clusters."""
    found: dict[str, dict[str, list[tuple[str, ...]]]] = {}
    for key, node in read_official(path).members():
        if kind == "entities":
            found[key] = {"": [_stripped(group.texts()) for group in node["entities"].items()]}
        else:
            found[key] = {
                entity: [_stripped(alternatives(text)) for text in groups.texts()]
                for entity, groups in node["entity_attr_dict"].members()
            }
    return found


def read_predicted_groups(path: Path, gold: Groups, kind: Kind, form: AttributeForm = "vanilla") -> Groups:
    """Predicted clusters, in the official form.

    Of entities it is {procedure: {first name: [names]}}, of attributes {procedure: {entity: {name: [further names]}}}.

    Args:
        form: concise attributes end with " of ENTITY", which is left out.

    Raises:
        UserError: as above, or the file names a procedure or an entity that is not in the gold file.
    """
    found: dict[str, dict[str, list[tuple[str, ...]]]] = {}
    for key, node in read_official(path).members():
        if key not in gold:
            raise UserError(f"{path}, {key}: no such procedure in the gold file; expected some of {', '.join(gold)}")
        if kind == "entities":
            found[key] = {"": [_stripped(names.texts()) for _, names in node.members()]}
            continue
        found[key] = {}
        for entity, groups in node.members():
            if entity not in gold[key]:
                raise groups.wrong(f"an entity of the gold file, which has none of {entity!r}")
            end = suffix(entity, form)
            found[key][entity] = [
                tuple(dict.fromkeys(text.removesuffix(end) for text in _stripped((name, *rest.texts()))))
                for name, rest in groups.members()
            ]
    return found


def suffix(entity: str, form: AttributeForm) -> str:
    """What a concise attribute has behind its name: the first mention of its entity."""
    return f" of {alternatives(entity)[0].strip()}" if form == "concise" else ""


def _stripped(texts: tuple[str, ...]) -> tuple[str, ...]:
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


def _run(call: SystemCall, asker: Asker) -> SystemResult:
    own: OpenPIOptions = call.options
    entity_input, entity_gold, attribute_input, attribute_gold = (
        find_official(call.data, name, needed_by="task=clusters")
        for name in (ENTITY_INPUT, ENTITY_GOLD, ATTRIBUTE_INPUT, ATTRIBUTE_GOLD)
    )
    gold_entities = read_gold_groups(entity_gold, "entities")
    gold_attributes = read_gold_groups(attribute_gold, "attributes")
    entities = drawn(call, read_to_cluster(entity_input, "entities"))
    attributes = drawn(call, read_to_cluster(attribute_input, "attributes"))
    files, entity_scores = {}, []
    for repeat in range(own.repeats):
        found = ask_entity_clusters(asker, entities, runs=own.entity_runs, repeat=repeat, seed=call.seed)
        entity_scores.append(score_clusters(gold_entities, found))
        files[f"entity_clusters_{repeat + 1}.json"] = clusters_file(found, "entities")
    form = own.attribute_form
    found = ask_attribute_clusters(asker, attributes, runs=own.attribute_runs, seed=call.seed, form=form)
    files["attribute_clusters.json"] = clusters_file(found, "attributes")
    result = clusters_result({"entities": entity_scores, "attributes": [score_clusters(gold_attributes, found)]})
    # The score of entities is a mean of several clusterings, which has no counts of its own.
    return replace(result, files=files, measures=_measures("attributes", gold_attributes, found))


def _score(kind: Kind, predictions: Path, gold: Path, options: ScorerOptions) -> SystemResult:
    labelled = read_gold_groups(gold, kind)
    found = read_predicted_groups(predictions, labelled, kind, options.attribute_form)
    result = clusters_result({kind: [score_clusters(labelled, found)]})
    return replace(result, measures=_measures(kind, labelled, found))


def _template(kind: Kind, gold: Path) -> Iterator[dict[str, Any]]:
    """A line for each name, in alphabetical order: the gold file's would tell the clusters."""
    for key, groups in read_gold_groups(gold, kind).items():
        for entity, clusters in groups.items():
            about = {"procedure": key, "entity": entity} if kind == "attributes" else {"procedure": key}
            for name in sorted({name for names in clusters for name in names}):
                yield {**about, "name" if kind == "entities" else "attribute": name, "cluster": ""}


TASK = Task(
    _run,
    {"entity_clusters": partial(_score, "entities"), "attribute_clusters": partial(_score, "attributes")},
    {"entity_clusters": partial(_template, "entities"), "attribute_clusters": partial(_template, "attributes")},
)
