"""Schemata: attributes of entities that change, asked step by step (paper section 3.2, table 3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, product
from typing import Any

from d2e_sft.util.table import Table
from eval.compare.measures.measure import Measure
from eval.systems.openpi2.analysis.errors import errors_by_gold
from eval.systems.openpi2.analysis.statistics import gold_statistics
from eval.systems.openpi2.gold import Change, Procedures, digest_of, has_expansion, texts_by_step
from eval.systems.openpi2.metrics import Scorer, bertscore_table, best_scores, cell, f1_measure, mean, scored
from eval.systems.openpi2.schemata_scores import Schemas, score_schemata, score_schemata_corrected
from eval.systems.openpi2.task import scorer_of
from eval.systems.openpi2.tracking import Listed, ListingTask
from eval.systems.system import SystemResult

_LEVELS = ("entities_global", "attributes_global", "entities_local", "attributes_local")
_COLUMNS = ("of", "precision", "recall", "F1", "F1 expanded", "corrected F1", "corr. expanded")


def parse_schema(reply: str) -> dict[str, list[str]]:
    """Read `entity (attribute, attribute), entity (attribute)` as attributes by entity, in order.

    Entities are split at `"), "`; text without `" ("` is no entity, and empty attributes are left out.
    """
    schema: dict[str, list[str]] = {}
    for part in reply.strip().split("), "):
        entity, opens, rest = part.partition(" (")
        # The text up to the next " (" is what the official split takes.
        names = [name.strip().strip(".").strip(")") for name in rest.split(" (")[0].split(",")]
        for attribute in filter(None, names) if opens else ():
            schema.setdefault(entity, []).append(attribute)
    return schema


def _measures(gold: Procedures, predictions: Schemas, kinds: Mapping[str, bool]) -> list[Measure]:
    """Return F1 of attributes procedure by procedure, by both scorers and with expansion if there is one."""
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


def _bertscores(gold: Procedures, answers: Schemas, scorer: Scorer | None, expanded: bool) -> dict[str, float | None]:
    """Return the mean best BERTScore of each predicted "ATTRIBUTE of ENTITY", against the procedure and its step."""
    if scorer is None:
        return {"global": None, "local": None}

    def named(entities: Sequence[str], attributes: Sequence[str], _: Change) -> list[str]:
        return [f"{name} of {entity}" for entity, name in product(entities, attributes)]

    whole: list[tuple[str, Sequence[str]]] = []
    by_step: list[tuple[str, Sequence[str]]] = []
    for key, steps in answers.items():
        texts = [[f"{name} of {entity}" for entity, names in step.items() for name in names] for step in steps]
        gold_steps = [list(chain.from_iterable(s)) for s in texts_by_step(gold[key], named, expanded=expanded)]
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

    def evaluate(self, gold: Procedures, answers: Listed, options: Any, seed: int) -> SystemResult:
        """Return scores and tables; the headline is that of attributes (the paper's entity-attribute pairs)."""
        scorer = scorer_of(options)
        kinds = {"plain": False, **({"expanded": True} if has_expansion(gold) else {})}
        official = {name: score_schemata(gold, answers, expanded=flag) for name, flag in kinds.items()}
        corrected = {name: score_schemata_corrected(gold, answers, expanded=flag) for name, flag in kinds.items()}
        bert = {name: _bertscores(gold, answers, scorer, flag) for name, flag in kinds.items()}
        headline = {
            f"schemata_{level}_f1" + "_expanded" * (name == "expanded"): getattr(figures, f"attributes_{level}").f1
            for name, figures in official.items()
            for level in ("global", "local")
        }
        detail: dict[str, Any] = {
            "procedures": len(answers),
            "official": {name: figures.as_json() for name, figures in official.items()},
            "corrected": {name: figures.as_json() for name, figures in corrected.items()},
            "bertscore": bert,
        }
        rows = []
        for level in _LEVELS:
            plain = getattr(official["plain"], level)
            f1 = [
                cell(getattr(scores[kind], level).f1 if kind in scores else None)
                for scores in (official, corrected)
                for kind in ("plain", "expanded")
            ]
            rows.append((level.replace("_", ", "), cell(plain.precision), cell(plain.recall), *f1))
        title = f"Schemata, exact match ({scored(len(answers), len(gold))})"
        detail["errors"], errors = errors_by_gold(gold, answers)
        detail["gold"], statistics = gold_statistics(gold)
        tables = [
            Table.of(_COLUMNS, rows, title),
            bertscore_table(
                "Schemata, BERTScore", [(n, bert["plain"][n], bert.get("expanded", {}).get(n)) for n in bert["plain"]]
            ),
            errors,
            statistics,
        ]
        return SystemResult({**headline, "schemata": detail}, tables, measures=_measures(gold, answers, kinds))
