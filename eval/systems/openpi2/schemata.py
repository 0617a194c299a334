"""Schemata: which attributes of which entities change, asked step by step (paper section 3.2, table 3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from eval.systems.openpi2.bertscore import Scorer, best_scores, mean
from eval.systems.openpi2.complete_scorer import gold_schemata
from eval.systems.openpi2.gold import Procedure, has_expansion
from eval.systems.openpi2.schemata_scorer import Schema, SchemataScores, score_schemata, score_schemata_corrected
from eval.systems.openpi2.tables import bertscore_table, cell, scored
from eval.systems.system import ScoreTable, SystemResult

_LEVELS = ("entities_global", "attributes_global", "entities_local", "attributes_local")


def schemata_result(
    gold: Mapping[str, Procedure], predictions: Mapping[str, Sequence[Schema]], scorer: Scorer | None
) -> SystemResult:
    """Scores and tables; the headline is of attributes, the paper's entity-attribute pairs.

    Args:
        gold: procedures with clusters; where these have no paraphrases, nothing is scored with expansion.
    """
    kinds = {"plain": False, **({"expanded": True} if has_expansion(gold) else {})}
    official = {name: score_schemata(gold, predictions, expanded=flag) for name, flag in kinds.items()}
    corrected = {name: score_schemata_corrected(gold, predictions, expanded=flag) for name, flag in kinds.items()}
    bert = {name: _bertscores(gold, predictions, scorer, flag) for name, flag in kinds.items()}
    headline = {
        f"schemata_{level}_f1" + "_expanded" * (name == "expanded"): getattr(figures, f"attributes_{level}").f1
        for name, figures in official.items()
        for level in ("global", "local")
    }
    detail: dict[str, Any] = {
        "procedures": len(predictions),
        "official": {name: figures.as_json() for name, figures in official.items()},
        "corrected": {name: figures.as_json() for name, figures in corrected.items()},
        "bertscore": bert,
    }
    title = f"Schemata, exact match ({scored(len(predictions), len(gold))})"
    tables = [
        ScoreTable(title, _COLUMNS, [_row(level, official, corrected) for level in _LEVELS]),
        bertscore_table(
            "Schemata, BERTScore", [(n, bert["plain"][n], bert.get("expanded", {}).get(n)) for n in bert["plain"]]
        ),
    ]
    return SystemResult({**headline, "schemata": detail}, tables)


_COLUMNS = ("of", "precision", "recall", "F1", "F1 + expansion", "corrected F1", "corrected F1 + expansion")


def _row(
    level: str, official: Mapping[str, SchemataScores], corrected: Mapping[str, SchemataScores]
) -> tuple[str, ...]:
    plain = getattr(official["plain"], level)
    f1 = [
        cell(getattr(scores[kind], level).f1 if kind in scores else None)
        for scores in (official, corrected)
        for kind in ("plain", "expanded")
    ]
    return (level.replace("_", ", "), cell(plain.precision), cell(plain.recall), *f1)


def _bertscores(
    gold: Mapping[str, Procedure], predictions: Mapping[str, Sequence[Schema]], scorer: Scorer | None, expanded: bool
) -> dict[str, float | None]:
    """Of each predicted "ATTRIBUTE of ENTITY" the best over gold ones, of the procedure or of the step; means."""
    if scorer is None:
        return {"global": None, "local": None}
    whole: list[tuple[str, Sequence[str]]] = []
    by_step: list[tuple[str, Sequence[str]]] = []
    for key, steps in predictions.items():
        texts = [[f"{name} of {entity}" for entity, names in step.items() for name in names] for step in steps]
        gold_steps = [
            [text for texts in step for text in texts] for step in gold_schemata(gold[key], expanded=expanded)
        ]
        everything = sorted({text for step in gold_steps for text in step})
        whole += [(text, everything) for text in sorted({text for step in texts for text in step})]
        by_step += [(text, step) for listed, step in zip(texts, gold_steps, strict=True) for text in listed]
    return {"global": mean(best_scores(scorer, whole)), "local": mean(best_scores(scorer, by_step))}
