"""Expansion: paraphrases of the names in a cluster, which are further references (section 3.1).

The paper's own were rated by people, which no script can do. What is scored is how many of them the official expanded
file has, too; what is kept is a file in its form, against which `d2e score openpi2 --gold` takes predictions.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from d2e_sft.util.table import Table
from eval.systems.asking import Asker, conversation
from eval.systems.benchmark import BenchmarkCall, BenchmarkResult
from eval.systems.openpi2.clusters import PROMPT, ask_runs
from eval.systems.openpi2.gold import (
    CLUSTERED,
    EXPANDED,
    Procedures,
    expansions,
    normalise,
    official_text,
    read_clustered,
    read_official,
)
from eval.systems.openpi2.task import OpenPITask, PrecisionRecall, cell

_TOKENS = 96
# (entity, attribute) → paraphrases; the attribute is empty for those of the entity itself.
Paraphrases = dict[tuple[str, str], list[str]]


def ask_expansion(asker: Asker, procedures: Procedures, *, runs: int, seed: int) -> dict[str, Paraphrases]:
    """Return new names for every cluster, joined over several answers."""
    clusters = {
        (key, entity, attribute): names.mentions
        for key, procedure in procedures.items()
        for entity, cluster in procedure.clusters.items()
        for attribute, names in {"": cluster.names, **cluster.attributes}.items()
    }
    chats = [
        conversation(
            "openpi2",
            "/".join(filter(None, key)),
            PROMPT,
            group=key[0],
            expand=True,
            goal=procedures[key[0]].goal,
            steps=procedures[key[0]].steps,
            entity=key[1] if key[2] else "",
            names=list(names),
        )
        for key, names in clusters.items()
    ]
    paraphrases: dict[str, Paraphrases] = {key: {} for key in procedures}
    answers = ask_runs(asker, "expansion", chats, _TOKENS, runs, seed)
    for ((key, entity, attribute), names), replies in zip(clusters.items(), answers, strict=True):
        known, kept = set(map(normalise, names)), paraphrases[key].setdefault((entity, attribute), [])
        for name in (name.strip() for groups in replies for group in groups[:1] for name in group):
            if name and normalise(name) not in known:
                known.add(normalise(name))
                kept.append(name)
    return paraphrases


def expanded_file(path: Path, paraphrases: Mapping[str, Paraphrases]) -> str:
    """Return the file of clusters with these paraphrases, in the form of the official expanded one."""
    root = read_official(path)
    content = {key: root[key] for key in paraphrases}
    for key, more in paraphrases.items():
        for entity, cluster in content[key]["clusters"].items():
            added = more[entity, ""]
            cluster["entity_overgenerate"] = added
            cluster["entity_cluster_combined"] = [*cluster["entity_cluster"], *added]
            for attribute, item in cluster["attribute_cluster"].items():
                names = item["attribute_cluster"] if isinstance(item, dict) else item
                added = more[entity, attribute]
                cluster["attribute_cluster"][attribute] = {
                    "attribute_cluster": names,
                    "attribute_overgenerate": added,
                    "attribute_cluster_combined": [*names, *added],
                }
    return official_text(content)


def expansion_result(gold: Procedures, paraphrases: Mapping[str, Paraphrases]) -> BenchmarkResult:
    """Count the paraphrases, those that the official file has too (precision), and the reverse (recall)."""
    compared: dict[str, list[PrecisionRecall]] = {"entities": [], "attributes": []}
    for key, more in paraphrases.items():
        for (entity, attribute), names in more.items():
            cluster = gold[key].clusters[entity]
            known = cluster.attributes[attribute] if attribute else cluster.names
            added = set(map(normalise, known.expanded or ())) - set(map(normalise, known.mentions))
            figures = PrecisionRecall()
            figures.count(set(map(normalise, names)), added)
            compared["attributes" if attribute else "entities"].append(figures)
    rows, detail = [], {}
    for kind, clusters in compared.items():
        total = PrecisionRecall.total(clusters)
        shared = (total.precision, total.recall) if "expanded" in expansions(gold) else (None, None)
        average = total.predicted / len(clusters) if clusters else 0.0
        rows.append((kind, str(len(clusters)), f"{average:.1f}", *map(cell, shared)))
        counts = {"clusters": len(clusters), "paraphrases": total.predicted}
        detail[kind] = {**counts, "in_official": shared[0], "of_official": shared[1]}
    columns = ("of", "clusters", "paraphrases each", "share that the official file has", "share of its own found")
    headline = {f"{kind}_paraphrases_in_official": detail[kind]["in_official"] for kind in detail}
    return BenchmarkResult({**headline, "expansion": detail}, [Table.of(columns, rows, "Expansion of clusters")])


class Expansion(OpenPITask[Procedures, Mapping[str, Paraphrases]]):
    official = (EXPANDED, CLUSTERED)

    def run(self, call: BenchmarkCall, asker: Asker) -> BenchmarkResult:
        path = self.gold_at(call.data, call.options, "--data")
        gold = read_clustered(path)
        paraphrases = ask_expansion(asker, call.drawn_from(gold), runs=call.options.expansion_runs, seed=call.seed)
        return replace(expansion_result(gold, paraphrases), files={"expanded.json": expanded_file(path, paraphrases)})
