"""Clusters: which names mean the same, by asking a model several times (section 3.1, table 2).

Clusters are scored by exact match of sets against procedures that were labelled by hand, without names that the labels
lack. The official script swaps names: its "recall" divides correct predicted clusters by the number of *gold*
clusters, its "precision" found gold clusters by the number of *predicted* ones. The corrected figures have the usual
names, drop empty clusters, and count each cluster once.
"""

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AliasChoices, BeforeValidator, Field

from d2e_sft.util.table import Table
from eval.run.task import TaskItem
from eval.score.measures import Measure, digest
from eval.systems.asking import Asker, conversation
from eval.systems.benchmark import BenchmarkCall, BenchmarkResult
from eval.systems.openpi2.gold import (
    alternatives,
    mean,
    normalise,
    official_text,
    read_official,
)
from eval.systems.openpi2.task import (
    AttributeForm,
    OpenPIOptions,
    OpenPITask,
    PrecisionRecall,
    cell,
    f1_measure,
)
from eval.systems.reading import GoldRow, check_ids, file_in

ENTITY_INPUT, ENTITY_GOLD = "dev_data_mini_entity.json", "dev_data_mini_annotated_entity.json"
ATTRIBUTE_INPUT, ATTRIBUTE_GOLD = "dev_data_mini_attr.json", "dev_data_mini_annotated_attr.json"
PROMPT = "openpi2/prompts/clusters"
_TEMPERATURE = 0.7  # the paper's
_TOKENS = 256
Kind = Literal["entities", "attributes"]
Clustering = list[list[str]]
# By procedure and entity the clusters of its attributes; those of the entities themselves are under the empty name.
Groups = Mapping[str, Mapping[str, Sequence[Sequence[str]]]]


# Names of entities, which the files list, are under the empty name.
_BY_ENTITY = BeforeValidator(lambda value: {"": value} if isinstance(value, list) else value)


class ToCluster(GoldRow):
    """A procedure with names to be clustered.

    Names are entity mentions under one empty key; or by entity the entries of its attributes, each one or several
    mentions with ` | ` between them.
    """

    goal: str
    steps: tuple[str, ...]
    names: Annotated[dict[str, tuple[str, ...]], _BY_ENTITY] = Field(
        validation_alias=AliasChoices("entity_attr_dict", "entities_flattened")
    )


class _LabelledGroups(GoldRow):
    groups: Annotated[dict[str, list[Any]], _BY_ENTITY] = Field(
        validation_alias=AliasChoices("entity_attr_dict", "entities")
    )


def read_gold_groups(path: Path) -> Groups:
    """Read gold clusters: lists of entities, or attributes with bars between them."""
    return {
        key: {
            entity: [_stripped(alternatives(group) if isinstance(group, str) else group) for group in groups]
            for entity, groups in labelled.groups.items()
        }
        for key, labelled in read_official(path, _LabelledGroups).items()
    }


def read_predicted_groups(path: Path, gold: Groups, kind: Kind, form: AttributeForm = "vanilla") -> Groups:
    """Read predicted clusters; UserError if the file is damaged, or names what is not in the gold file.

    Of entities it is {procedure: {first name: [names]}}, of attributes {procedure: {entity: {name: [further names]}}}.
    Concise attributes end with " of ENTITY", which is left out.
    """
    schema = dict[str, list[str]] if kind == "entities" else dict[str, dict[str, list[str]]]
    content = read_official(path, schema)
    check_ids(path, "procedure", content, gold)
    if kind == "entities":
        return {key: {"": list(map(_stripped, groups.values()))} for key, groups in content.items()}
    for key, entities in content.items():
        check_ids(path, f"entity of procedure {key}", entities, gold[key])
    return {
        key: {
            entity: [
                tuple(dict.fromkeys(text.removesuffix(suffix(entity, form)) for text in _stripped((name, *rest))))
                for name, rest in groups.items()
            ]
            for entity, groups in entities.items()
        }
        for key, entities in content.items()
    }


def suffix(entity: str, form: AttributeForm) -> str:
    """Return the ending of a concise attribute: the first mention of its entity."""
    return f" of {alternatives(entity)[0].strip()}" if form == "concise" else ""


def _stripped(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(text.strip() for text in texts)


def clusters_file(predictions: Groups, kind: Kind) -> str:
    """Return the official form; a cluster of attributes is its first name → the others, or itself without others."""
    if kind == "entities":
        return official_text(
            {key: {group[0]: group for group in clusters[""]} for key, clusters in predictions.items()}
        )
    return official_text(
        {
            key: {entity: {group[0]: group[1:] or group for group in groups} for entity, groups in entities.items()}
            for key, entities in predictions.items()
        }
    )


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


def ask_runs(
    asker: Asker, name: str, chats: Sequence[TaskItem], tokens: int, runs: int, seed: int
) -> list[list[list[tuple[str, ...]]]]:
    """Return for each prompt the groups in the reply of each run."""
    outputs = [
        asker.ask(f"{name}-run{run + 1}", chats, max_new_tokens=tokens, temperature=_TEMPERATURE, seed=seed + run)
        for run in range(runs)
    ]
    return [list(map(parse_groups, replies)) for replies in zip(*outputs, strict=True)]


def _ask_clusters(
    asker: Asker,
    name: str,
    tasks: Mapping[str, tuple[ToCluster, str, Sequence[str]]],
    runs: int,
    seed: int,
    form: AttributeForm = "vanilla",
) -> dict[str, list[list[tuple[str, ...]]]]:
    """Ask for clusters of a procedure's names, of attributes if an entity is named; `name` is of the passes."""

    def ended(groups: Sequence[Sequence[str]], entity: str = "") -> list[list[str]]:
        return [[name + suffix(entity, form) for name in group] for group in groups]

    chats = [
        conversation(
            "openpi2",
            key,
            PROMPT,
            group=name,
            expand=False,
            goal=procedure.goal,
            steps=procedure.steps,
            entity=entity,
            names=ended([names], entity)[0],
            ended=ended,
        )
        for key, (procedure, entity, names) in tasks.items()
    ]
    return dict(zip(tasks, ask_runs(asker, name, chats, _TOKENS, runs, seed), strict=True))


def ask_entity_clusters(
    asker: Asker, procedures: Mapping[str, ToCluster], *, runs: int, repeat: int, seed: int
) -> dict[str, dict[str, Clustering]]:
    """Cluster each procedure's entities by the answers of one `repeat`; names that are alike are merged first."""
    merged = {key: merge_alike(list(dict.fromkeys(procedure.names[""]))) for key, procedure in procedures.items()}
    tasks = {key: (procedure, "", list(merged[key])) for key, procedure in procedures.items() if len(merged[key]) > 1}
    answers = _ask_clusters(asker, f"entity-clusters-{repeat + 1}", tasks, runs, seed + repeat * runs)
    clusters = {
        key: aggregate(list(names), answers.get(key, ()), leftovers="together") for key, names in merged.items()
    }
    return {
        key: {"": [[name for first in group for name in merged[key][first]] for group in groups]}
        for key, groups in clusters.items()
    }


def merge_alike(names: Sequence[str]) -> dict[str, list[str]]:
    """Return the first of names that differ only by article, letter case or plural → all of them."""
    first: dict[str, str] = {}
    merged: dict[str, list[str]] = {}
    for name in names:
        bare = normalise(name.strip())
        if len(bare) > 4 and not bare.endswith("ss"):  # its singular
            bare = bare[:-3] + "y" if bare.endswith("ies") else bare.removesuffix("s")
        merged.setdefault(first.setdefault(bare, name), []).append(name)
    return merged


def ask_attribute_clusters(
    asker: Asker, procedures: Mapping[str, ToCluster], *, runs: int, seed: int, form: AttributeForm = "vanilla"
) -> dict[str, dict[str, Clustering]]:
    """Cluster the attributes of each entity; if the file has one entry, its names are one cluster.

    In the form concise they are shown to the model as ATTRIBUTE of ENTITY.
    """
    names = {
        (key, entity): [name.strip() for entry in entries for name in alternatives(entry)]
        for key, procedure in procedures.items()
        for entity, entries in procedure.names.items()
    }
    tasks = {
        f"{key}/{entity}": (procedures[key], alternatives(entity)[0], attributes)
        for (key, entity), attributes in names.items()
        if len(procedures[key].names[entity]) > 1
    }
    answers = _ask_clusters(asker, "attribute-clusters", tasks, runs, seed, form)
    clusters: dict[str, dict[str, Clustering]] = {key: {} for key in procedures}
    for (key, entity), attributes in names.items():
        clusters[key][entity] = [attributes] if attributes else []
        if f"{key}/{entity}" in answers:
            end = suffix(entity, form)
            groups = aggregate([name + end for name in attributes], answers[f"{key}/{entity}"], leftovers="apart")
            clusters[key][entity] = [[name.removesuffix(end) for name in group] for group in groups]
    return clusters


def aggregate(names: Sequence[str], answers: Iterable[Sequence[tuple[str, ...]]], *, leftovers: str) -> Clustering:
    """Join the groups of several answers into one clustering (paper section 3.1, footnote 3).

    The most frequent group is taken first, then the next one whose names are all free; the order of names does not
    matter. Groups with other names are skipped. Ties go to the first group. The remaining names are one cluster if
    `leftovers` is `together`, like the official script for entities, or one each if `apart`, as for attributes.
    """
    counts: Counter[frozenset[str]] = Counter()
    written: dict[frozenset[str], tuple[str, ...]] = {}
    for group in (group for groups in answers for group in groups):
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


def score_clusters(gold: Groups, predictions: Groups) -> dict[str, PrecisionRecall]:
    """Return the official and the corrected figures; entities whose attributes have one gold cluster are skipped.

    What `official` has as its precision is officially called so, too.
    """
    official, corrected = PrecisionRecall(), PrecisionRecall()
    for key, entity in ((key, entity) for key, entities in predictions.items() for entity in entities):
        expected = gold[key][entity]
        if entity and len(expected) <= 1:
            continue
        known = {name for group in expected for name in group}
        predicted = [tuple(name for name in group if name in known) for group in predictions[key][entity]]
        # What is officially "precision" has gold clusters above and predicted ones below.
        official.predicted += len(predicted)
        official.predicted_right += sum(_found(group, predicted) for group in expected)
        official.gold += len(expected)
        official.gold_found += sum(_found(group, expected) for group in predicted)
        corrected.count(set(map(frozenset, filter(None, predicted))), set(map(frozenset, expected)))
    return {"official": official, "corrected": corrected}


def _found(group: Sequence[str], groups: Iterable[Sequence[str]]) -> bool:
    # As officially: as many names, each of them in the other.
    return any(len(group) == len(candidate) and all(name in candidate for name in group) for candidate in groups)


def clusters_result(scores: Mapping[Kind, Sequence[dict[str, PrecisionRecall]]]) -> BenchmarkResult:
    """Return scores and table, with the mean of each figure over several clusterings."""
    rows: list[tuple[str, ...]] = []
    detail: dict[str, dict[str, Any]] = {}
    headline: dict[str, float] = {}
    for kind, runs in scores.items():
        detail[kind] = {}
        for name in ("official", "corrected"):
            figures = [run[name] for run in runs]
            detail[kind][name] = [item.as_json() for item in figures]
            means = {key: mean(getattr(item, key) for item in figures) for key in ("precision", "recall", "f1")}
            rows.append((f"{kind}, {name}", *map(cell, means.values()), str(len(figures))))
            headline.setdefault(f"{kind}_cluster_f1", means["f1"])
    title = "Clusters, exact match (officially precision and recall have their names swapped)"
    table = Table.of(("of", "precision", "recall", "F1", "mean of"), rows, title)
    return BenchmarkResult({**headline, "clusters": detail}, [table])


def _measures(kind: Kind, gold: Groups, predictions: Groups) -> list[Measure]:
    """Return F1 procedure by procedure, by both scorers."""
    scores = {key: score_clusters(gold, {key: groups}) for key, groups in predictions.items()}
    sha = digest([[key, dict(gold[key])] for key in sorted(predictions)])
    return [
        item
        for rule, after in (("official", ""), ("corrected", ", corrected"))
        for item in f1_measure(f"{kind}, cluster F1{after}", sha, {key: both[rule] for key, both in scores.items()})
    ]


class EntityClusters(OpenPITask[Groups, Groups]):
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

    def evaluate(self, gold: Groups, answers: Groups, options: Any, seed: int) -> BenchmarkResult:
        result = clusters_result({self.names: [score_clusters(gold, answers)]})
        return replace(result, measures=_measures(self.names, gold, answers))

    def template(self, gold: Groups, options: Any) -> Iterator[dict[str, Any]]:
        """Return one line per name, in alphabetical order, because the gold file's order shows the clusters."""
        of_entities = self.names == "entities"
        for key, groups in gold.items():
            for entity, clusters in groups.items():
                row = {"procedure": key} if of_entities else {"procedure": key, "entity": entity}
                for name in sorted({name for names in clusters for name in names}):
                    yield {**row, "name" if of_entities else "attribute": name, "cluster": ""}


class AttributeClusters(EntityClusters):
    kind = "attribute_clusters"
    official = (ATTRIBUTE_GOLD,)
    names = "attributes"


class Clusters(OpenPITask[Groups, Groups]):
    """Both kinds of clusters, asked for in one run."""

    def run(self, call: BenchmarkCall, asker: Asker) -> BenchmarkResult:
        """Cluster entities several times, and attributes once; the scores of entities are averaged."""
        options: OpenPIOptions = call.options
        entity_input, entity_gold, attribute_input, attribute_gold = (
            file_in(call.data, [name], "--data", f"the official files (get them: {self.obtain})")
            for name in (ENTITY_INPUT, ENTITY_GOLD, ATTRIBUTE_INPUT, ATTRIBUTE_GOLD)
        )
        gold, attributes_gold = read_gold_groups(entity_gold), read_gold_groups(attribute_gold)
        entities = call.drawn_from(read_official(entity_input, ToCluster))
        attributes = call.drawn_from(read_official(attribute_input, ToCluster))
        files, scores = {}, []
        for repeat in range(options.repeats):
            groups = ask_entity_clusters(asker, entities, runs=options.entity_runs, repeat=repeat, seed=call.seed)
            scores.append(score_clusters(gold, groups))
            files[f"entity_clusters_{repeat + 1}.json"] = clusters_file(groups, "entities")
        form, runs = options.attribute_form, options.attribute_runs
        groups = ask_attribute_clusters(asker, attributes, runs=runs, seed=call.seed, form=form)
        files["attribute_clusters.json"] = clusters_file(groups, "attributes")
        result = clusters_result({"entities": scores, "attributes": [score_clusters(attributes_gold, groups)]})
        # The score of entities is a mean of several clusterings, which has no counts of its own.
        return replace(result, files=files, measures=_measures("attributes", attributes_gold, groups))
