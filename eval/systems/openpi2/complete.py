"""Complete sentences: the task of the first OpenPI (paper section 3.2, table 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from eval.systems.openpi2.bertscore import Scorer, best_scores, mean
from eval.systems.openpi2.complete_scorer import gold_sentences, score_complete, score_complete_corrected
from eval.systems.openpi2.gold import Procedure, has_expansion
from eval.systems.openpi2.tables import bertscore_table, cell, scored
from eval.systems.system import ScoreTable, SystemResult


def complete_result(
    gold: Mapping[str, Procedure], predictions: Mapping[str, Sequence[Sequence[str]]], scorer: Scorer | None
) -> SystemResult:
    """F1 and BERTScore; the official exact match reads the clusters without paraphrases in either case."""
    kinds = {"plain": False, **({"expanded": True} if has_expansion(gold) else {})}
    figures = {"official": score_complete(gold, predictions, expanded=False)}
    for name, flag in kinds.items():
        figures[f"corrected, {name}"] = score_complete_corrected(gold, predictions, expanded=flag)
    bert = {name: _bertscore(gold, predictions, scorer, flag) for name, flag in kinds.items()}
    rows = [(name, cell(item.precision), cell(item.recall), cell(item.f1)) for name, item in figures.items()]
    title = f"Complete sentences, exact match ({scored(len(predictions), len(gold))})"
    tables = [
        ScoreTable(title, ("scorer", "precision", "recall", "F1"), rows),
        bertscore_table("Complete sentences, BERTScore", [("sentences", bert["plain"], bert.get("expanded"))]),
    ]
    detail = {
        "procedures": len(predictions),
        **{name: item.as_json() for name, item in figures.items()},
        "bertscore": bert,
    }
    return SystemResult({"complete_f1": figures["official"].f1, "complete": detail}, tables)


def _bertscore(
    gold: Mapping[str, Procedure],
    predictions: Mapping[str, Sequence[Sequence[str]]],
    scorer: Scorer | None,
    expanded: bool,
) -> float | None:
    if scorer is None:
        return None
    candidates: list[tuple[str, Sequence[str]]] = []
    for key, steps in predictions.items():
        for gold_step, step in zip(gold_sentences(gold[key], expanded=expanded), steps, strict=True):
            everything = [text for texts in gold_step for text in texts]
            candidates += [(text, everything) for text in step]
    return mean(best_scores(scorer, candidates))
