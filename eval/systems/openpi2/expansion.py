"""Expansion: paraphrases of the names in a cluster, which are further references (paper section 3.1).

The paper's own were rated by people, which no script can do. What is scored is how many of them the official expanded
file has, too; what is kept is a file in its form, against which `d2e score openpi2 --gold` takes predictions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from d2e_sft.data.chat_template import Messages
from d2e_sft.util.table import Table
from eval.systems.asker import Asker
from eval.systems.conversations import turns, wording
from eval.systems.openpi2 import gold as official
from eval.systems.openpi2.clustering import parse_groups
from eval.systems.openpi2.clusters import TEMPERATURE, context
from eval.systems.openpi2.gold import Procedure, Procedures, normalise
from eval.systems.openpi2.metrics import PrecisionRecall, cell
from eval.systems.openpi2.task import Task, conversation, drawn
from eval.systems.system import SystemCall, SystemResult

_TOKENS = 96
# (entity, attribute) → paraphrases; the attribute is empty for those of the entity itself.
Paraphrases = dict[tuple[str, str], list[str]]


def ask_expansion(asker: Asker, procedures: Procedures, *, runs: int, seed: int) -> dict[str, Paraphrases]:
    """Return new names for every cluster, joined over several answers."""
    clusters = {
        (key, entity, attribute): names
        for key, procedure in procedures.items()
        for entity, cluster in procedure.clusters.items()
        for attribute, names in (
            ("", cluster.names.mentions),
            *((attribute, names.mentions) for attribute, names in cluster.attributes.items()),
        )
    }
    conversations = [
        conversation("/".join(filter(None, key)), expansion_prompt, procedures[key[0]], *key[1:], names, group=key[0])
        for key, names in clusters.items()
    ]
    found: dict[str, Paraphrases] = {key: {} for key in procedures}
    for run in range(runs):
        outputs = asker.ask(
            f"expansion-run{run + 1}", conversations, max_new_tokens=_TOKENS, temperature=TEMPERATURE, seed=seed + run
        )
        for ((key, entity, attribute), names), output in zip(clusters.items(), outputs, strict=True):
            kept = found[key].setdefault((entity, attribute), [])
            known = {normalise(name) for name in (*names, *kept)}
            for name in (name.strip() for group in parse_groups(output)[:1] for name in group):
                if name and normalise(name) not in known:
                    known.add(normalise(name))
                    kept.append(name)
    return found


def expansion_prompt(
    procedure: Procedure, entity: str, attribute: str, names: Sequence[str], *, hidden: bool = False
) -> Messages:
    """Show two solved examples, then a cluster of the procedure: of an entity, or of an attribute if one is named."""
    told, kind = wording("openpi2/prompts/expansion"), "attribute" if attribute else "entity"
    yes = wording("openpi2/prompts/clusters")["accept"]
    texts: list[str] = []
    for example in told[f"{kind}_examples"]:
        question = told[kind].format(names=example["names"], entity=example.get("entity", ""))
        texts += [context(example["goal"], example["steps"]), yes, question, str(example["more"])]
    own = wording("openpi2/prompts/clusters")["hidden_context"] if hidden else context(procedure.goal, procedure.steps)
    return turns(*texts, own, yes, told[kind].format(names=list(names), entity=entity))


def expanded_file(path: Path, paraphrases: Mapping[str, Paraphrases]) -> str:
    """Return the file of clusters with these paraphrases, in the form of the official expanded one."""
    root = official.read_official(path)
    content = {key: root[key] for key in paraphrases}
    for key, more in paraphrases.items():
        for entity, cluster in content[key]["clusters"].items():
            own = more[entity, ""]
            cluster["entity_overgenerate"] = own
            cluster["entity_cluster_combined"] = [*cluster["entity_cluster"], *own]
            for attribute, item in cluster["attribute_cluster"].items():
                names = item["attribute_cluster"] if isinstance(item, dict) else item
                added = more[entity, attribute]
                cluster["attribute_cluster"][attribute] = {
                    "attribute_cluster": names,
                    "attribute_overgenerate": added,
                    "attribute_cluster_combined": [*names, *added],
                }
    return official.official_text(content)


def expansion_result(gold: Procedures, paraphrases: Mapping[str, Paraphrases]) -> SystemResult:
    """Count the paraphrases, those that the official file has too (precision), and the reverse (recall)."""
    compared = {"entities": PrecisionRecall(), "attributes": PrecisionRecall()}
    clusters = {"entities": 0, "attributes": 0}
    for key, more in paraphrases.items():
        for (entity, attribute), names in more.items():
            kind = "attributes" if attribute else "entities"
            cluster = gold[key].clusters[entity]
            known = cluster.attributes[attribute] if attribute else cluster.names
            added = set(map(normalise, known.expanded or ())) - set(map(normalise, known.mentions))
            clusters[kind] += 1
            compared[kind].count(set(map(normalise, names)), added)
    official_there = official.has_expansion(gold)
    rows: list[tuple[str, ...]] = []
    detail: dict[str, dict[str, float | None]] = {}
    for kind, figures in compared.items():
        per_cluster = figures.predicted / clusters[kind] if clusters[kind] else 0.0
        shared = (figures.precision, figures.recall) if official_there else (None, None)
        rows.append((kind, str(clusters[kind]), f"{per_cluster:.1f}", *map(cell, shared)))
        detail[kind] = {"clusters": clusters[kind], "paraphrases": figures.predicted}
        detail[kind] |= {"in_official": shared[0], "of_official": shared[1]}
    columns = ("of", "clusters", "paraphrases each", "share that the official file has", "share of its own found")
    headline = {f"{kind}_paraphrases_in_official": detail[kind]["in_official"] for kind in detail}
    return SystemResult({**headline, "expansion": detail}, [Table.of(columns, rows, "Expansion of clusters")])


class Expansion(Task[Procedures, Mapping[str, Paraphrases]]):
    """Paraphrases of every cluster."""

    official = (official.EXPANDED, official.CLUSTERED)

    def run(self, call: SystemCall, asker: Asker) -> SystemResult:
        """Ask for paraphrases, and compare them with the official ones."""
        path = self.gold_at(call.data, call.options, "--data")
        gold = official.read_clustered(path)
        found = ask_expansion(asker, drawn(call, gold), runs=call.options.expansion_runs, seed=call.seed)
        return replace(expansion_result(gold, found), files={"expanded.json": expanded_file(path, found)})
