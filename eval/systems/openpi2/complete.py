"""Complete sentences "ATTRIBUTE of ENTITY was BEFORE before and AFTER after" (paper section 3.2, table 4).

They are scored against those of each entity that changes at the step. Officially a prediction is correct
if it is part of any gold sentence, as the empty string always is. The corrected score compares whole sentences, takes
any accepted state, and counts a distinct sentence once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, product
from typing import Any

from d2e_sft.util.table import Table
from eval.systems.openpi2 import metrics
from eval.systems.openpi2.gold import Change, Procedure, Procedures, digest_of, has_expansion, sentence, texts_by_step
from eval.systems.openpi2.metrics import PrecisionRecall, cell
from eval.systems.openpi2.task import scorer_of
from eval.systems.openpi2.tracking import Listed, ListingTask
from eval.systems.system import SystemResult


def parse_sentences(reply: str) -> list[str]:
    """Return one sentence per line, without the dash before it."""
    return [line.strip(" -") for line in reply.strip().split("\n")]


def parse_change(text: str) -> tuple[str, str, str, str] | None:
    """Return entity, attribute, before and after of "ATTRIBUTE of ENTITY was BEFORE before and AFTER after"."""
    match = re.fullmatch(r"(.+?) of (.+?) (?:was|were) (.+?) before and (.+?) after(?:wards)?\.?", text.strip())
    return None if match is None else (match[2], match[1], match[3], match[4])


Sentences = Mapping[str, Sequence[Sequence[str]]]  # by procedure, those of each step


def gold_sentences(procedure: Procedure, *, expanded: bool, any_state: bool = False) -> list[list[list[str]]]:
    """Return by step, for each entity that changes, every sentence that its clusters' names make.

    With `expanded` paraphrases are names too; `any_state` takes any accepted state, officially it is the first.
    """
    kept = None if any_state else 1

    def texts(entities: Sequence[str], attributes: Sequence[str], change: Change) -> list[str]:
        fields = product(entities, attributes, change.before[:kept], change.after[:kept])
        return [sentence(attribute, entity, before, after) for entity, attribute, before, after in fields]

    return texts_by_step(procedure, texts, expanded=expanded)


def _steps(
    gold: Procedures, predictions: Sentences, *, expanded: bool, any_state: bool = False
) -> Iterator[tuple[list[list[str]], Sequence[str]]]:
    """Yield gold sentences by entity and the predictions of each step."""
    for key, steps in predictions.items():
        yield from zip(gold_sentences(gold[key], expanded=expanded, any_state=any_state), steps, strict=True)


def score_complete(gold: Procedures, predictions: Sentences, *, expanded: bool) -> PrecisionRecall:
    """Return precision over predictions, recall over (entity, step) pairs; a prediction finds the first it fits."""
    figures = PrecisionRecall()
    for gold_step, step in _steps(gold, predictions, expanded=expanded):
        matches = [
            next((i for i, sentences in enumerate(gold_step) if any(text in gold for gold in sentences)), None)
            for text in step
        ]
        figures.predicted += len(step)
        figures.predicted_right += sum(match is not None for match in matches)
        figures.gold += len(gold_step)
        figures.gold_found += len({match for match in matches if match is not None})
    return figures


def score_complete_corrected(gold: Procedures, predictions: Sentences, *, expanded: bool) -> PrecisionRecall:
    """Score whole sentences, in lower case and without a full stop, each distinct one once."""
    figures = PrecisionRecall()
    for gold_step, step in _steps(gold, predictions, expanded=expanded, any_state=True):
        wanted = [set(map(_plain, sentences)) for sentences in gold_step]
        texts = set(filter(None, map(_plain, step)))
        figures.predicted += len(texts)
        figures.predicted_right += len(texts & set().union(*wanted))
        figures.gold += len(wanted)
        figures.gold_found += sum(not texts.isdisjoint(sentences) for sentences in wanted)
    return figures


def _plain(text: str) -> str:
    return text.strip().rstrip(".").lower()


class Complete(ListingTask):
    """Complete sentences."""

    kind = "complete"
    schema = list[str]

    def parse(self, reply: str) -> list[str]:
        return parse_sentences(reply)

    def evaluate(self, gold: Procedures, answers: Listed, options: Any, seed: int) -> SystemResult:
        """Return F1 and BERTScore; the official exact match always uses the clusters without paraphrases."""
        scorer = scorer_of(options)
        kinds = {"plain": False, **({"expanded": True} if has_expansion(gold) else {})}
        figures = {"official": score_complete(gold, answers, expanded=False)}
        bert: dict[str, float | None] = dict.fromkeys(kinds)
        for name, flag in kinds.items():
            figures[f"corrected, {name}"] = score_complete_corrected(gold, answers, expanded=flag)
            if scorer is not None:
                steps = _steps(gold, answers, expanded=flag)
                candidates = [(text, [*chain.from_iterable(gold_step)]) for gold_step, step in steps for text in step]
                bert[name] = metrics.mean(metrics.best_scores(scorer, candidates))
        rows = [(name, *map(cell, (item.precision, item.recall, item.f1))) for name, item in figures.items()]
        title = f"Complete sentences, exact match ({metrics.scored(len(answers), len(gold))})"
        tables = [
            Table.of(("scorer", "precision", "recall", "F1"), rows, title),
            metrics.bertscore_table(
                "Complete sentences, BERTScore", [("sentences", bert["plain"], bert.get("expanded"))]
            ),
        ]
        exact = {name: item.as_json() for name, item in figures.items()}
        detail = {"procedures": len(answers), **exact, "bertscore": bert}
        headline = {"complete_f1": figures["official"].f1, "complete": detail}
        scorers = {"complete F1": partial(score_complete, gold, expanded=False)}
        for kind, expanded in kinds.items():
            name = "complete F1" + " + expansion" * (kind == "expanded") + ", corrected"
            scorers[name] = partial(score_complete_corrected, gold, expanded=expanded)
        about = digest_of(gold, answers)
        measures = [
            found
            for name, score in scorers.items()
            for found in metrics.f1_measure(name, about, {key: score({key: steps}) for key, steps in answers.items()})
        ]
        return SystemResult(headline, tables, measures=measures)
