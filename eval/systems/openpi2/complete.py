"""Complete sentences "ATTRIBUTE of ENTITY was BEFORE before and AFTER after" (paper section 3.2, table 4).

They are scored against those of each entity that changes at the step. Officially a prediction is right where it is
part of any gold sentence, which the empty string always is; the corrected score wants the whole sentence, takes any
accepted state, and counts a distinct sentence once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from d2e_sft.util.table import Table
from eval.compare.measures.measure import Measure
from eval.systems.openpi2.gold import (
    Change,
    EntityStates,
    Procedure,
    digest_of,
    has_expansion,
    names_of,
    sentence,
)
from eval.systems.openpi2.metrics import (
    PrecisionRecall,
    Scorer,
    bertscore_table,
    best_scores,
    cell,
    f1_measure,
    mean,
    scored,
)
from eval.systems.openpi2.task import scorer_of
from eval.systems.openpi2.tracking import Listed, ListingTask
from eval.systems.system import SystemResult


def parse_sentences(reply: str) -> list[str]:
    """One sentence a line, without the dash before it."""
    return [line.strip(" -") for line in reply.strip().split("\n")]


def parse_change(text: str) -> tuple[str, str, str, str] | None:
    """Entity, attribute, before and after of a sentence "ATTRIBUTE of ENTITY was BEFORE before and AFTER after"."""
    match = re.fullmatch(r"(.+?) of (.+?) (?:was|were) (.+?) before and (.+?) after(?:wards)?\.?", text.strip())
    return None if match is None else (match[2], match[1], match[3], match[4])


def gold_sentences(procedure: Procedure, *, expanded: bool, any_state: bool = False) -> list[list[list[str]]]:
    """By step, for each entity that changes there: every sentence that its clusters' names make.

    Args:
        expanded: paraphrases are names, too.
        any_state: take any accepted state; officially it is the first.
    """
    return [
        [
            [text for change in states.steps[place] for text in _texts(procedure, states, change, expanded, any_state)]
            for states in procedure.states
            if states.steps[place]
        ]
        for place in range(len(procedure.steps))
    ]


def _texts(procedure: Procedure, states: EntityStates, change: Change, expanded: bool, any_state: bool) -> list[str]:
    kept = None if any_state else 1
    fields = (*names_of(procedure, states, change, expanded=expanded), change.before[:kept], change.after[:kept])
    return [sentence(attribute, entity, before, after) for entity, attribute, before, after in product(*fields)]


def score_complete(
    gold: Mapping[str, Procedure], predictions: Mapping[str, Sequence[Sequence[str]]], *, expanded: bool
) -> PrecisionRecall:
    """Precision over predictions, recall over (entity, step) pairs: a prediction finds the first that it fits."""
    figures = PrecisionRecall()
    for key, steps in predictions.items():
        for gold_step, step in zip(gold_sentences(gold[key], expanded=expanded), steps, strict=True):
            matches = [_first_holding(text, gold_step) for text in step]
            figures.predicted += len(step)
            figures.predicted_right += sum(match is not None for match in matches)
            figures.gold += len(gold_step)
            figures.gold_found += len({match for match in matches if match is not None})
    return figures


def _first_holding(text: str, gold_step: Sequence[Sequence[str]]) -> int | None:
    return next((i for i, sentences in enumerate(gold_step) if any(text in gold for gold in sentences)), None)


def score_complete_corrected(
    gold: Mapping[str, Procedure], predictions: Mapping[str, Sequence[Sequence[str]]], *, expanded: bool
) -> PrecisionRecall:
    """The same for whole sentences, in lower case and without a full stop, each distinct one once."""
    figures = PrecisionRecall()
    for key, steps in predictions.items():
        gold_steps = gold_sentences(gold[key], expanded=expanded, any_state=True)
        for gold_step, step in zip(gold_steps, steps, strict=True):
            wanted = [set(map(_plain, sentences)) for sentences in gold_step]
            texts = set(filter(None, map(_plain, step)))
            figures.predicted += len(texts)
            figures.predicted_right += len(texts & set().union(*wanted))
            figures.gold += len(wanted)
            figures.gold_found += sum(not texts.isdisjoint(sentences) for sentences in wanted)
    return figures


def _plain(text: str) -> str:
    return text.strip().rstrip(".").lower()


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
        Table.of(("scorer", "precision", "recall", "F1"), rows, title),
        bertscore_table("Complete sentences, BERTScore", [("sentences", bert["plain"], bert.get("expanded"))]),
    ]
    exact = {name: item.as_json() for name, item in figures.items()}
    detail = {"procedures": len(predictions), **exact, "bertscore": bert}
    headline = {"complete_f1": figures["official"].f1, "complete": detail}
    return SystemResult(headline, tables, measures=_measures(gold, predictions, kinds))


def _measures(
    gold: Mapping[str, Procedure], predictions: Mapping[str, Sequence[Sequence[str]]], kinds: Mapping[str, bool]
) -> list[Measure]:
    """F1 procedure by procedure, by both scorers."""
    digest = digest_of(gold, predictions)
    own = {key: score_complete(gold, {key: steps}, expanded=False) for key, steps in predictions.items()}
    found = f1_measure("complete F1", digest, own)
    for kind, expanded in kinds.items():
        name = "complete F1" + " + expansion" * (kind == "expanded") + ", corrected"
        own = {k: score_complete_corrected(gold, {k: steps}, expanded=expanded) for k, steps in predictions.items()}
        found += f1_measure(name, digest, own)
    return found


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


class Complete(ListingTask):
    """Complete sentences."""

    kind = "complete"
    schema = list[str]

    def parse(self, reply: str) -> list[str]:
        return parse_sentences(reply)

    def evaluate(self, gold: Mapping[str, Procedure], answers: Listed, options: Any, seed: int) -> SystemResult:
        return complete_result(gold, answers, scorer_of(options))
