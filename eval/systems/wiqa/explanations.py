"""The official evaluator's scores of explanations: which sentences of the paragraph carry an answer.

An explanation is `{"di": …, "i": …, "j": …}`: the cause acts on sentence i in the direction di, and so on sentence j,
which acts on the effect in the direction de (the answer). The four scores are shares of correct fields, with the
evaluator's names: EQDIR (de), XDIR (di), XSENTID (i), YSENTID (j). A field that is missing from the prediction is
correct if it is missing from gold too.

The published evaluator never reads di (it looks for the field in the word "explanation"), so its XDIR is always 1.
Here XDIR compares the values in the files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from d2e_sft.util.table import Table, percent
from eval.systems.wiqa.questions import TYPES, Answers, Explanation, Question

METRICS = ("EQDIR", "XDIR", "XSENTID", "YSENTID")


def score_explanations(questions: Sequence[Question], answers: Answers) -> dict[str, Any]:
    """Return the four shares over the answered questions that have a gold explanation, overall and by type.

    A question without a predicted explanation counts as one with empty fields.
    """
    asked = [question for question in questions if question.id in answers.labels]
    correct: dict[str, list[tuple[bool, ...]]] = {kind: [] for kind in TYPES}
    for question in asked:
        if gold := question.explanation:
            found = answers.explanations.get(question.id, Explanation())
            label = answers.labels[question.id] == question.answer
            correct[question.type].append((label, found.di == gold.di, found.i == gold.i, found.j == gold.j))
    return {
        **_shares([row for rows in correct.values() for row in rows]),
        "by_type": {name: _shares(correct[kind]) for kind, name in TYPES.items()},
        "without_gold": sum(question.explanation is None for question in asked),
        "without_prediction": sum(question.id not in answers.explanations for question in asked),
    }


def _shares(rows: Sequence[tuple[bool, ...]]) -> dict[str, Any]:
    shares = [sum(column) / len(rows) for column in zip(*rows, strict=True)] or [None] * len(METRICS)
    return {**dict(zip(METRICS, shares, strict=True)), "questions": len(rows)}


def explanation_table(scores: Mapping[str, Any]) -> Table:
    """Return the table of the shares by type and overall."""
    parts = {**scores["by_type"], "all": scores}
    rows = [[name, *(percent(row[key]) for key in METRICS), str(row["questions"])] for name, row in parts.items()]
    left_out = f", {scores['without_gold']} questions without a gold one left out" * bool(scores["without_gold"])
    silent = f", {scores['without_prediction']} predictions without one" * bool(scores["without_prediction"])
    return Table.of(["type", *METRICS, "questions"], rows, f"Explanations, %{left_out}{silent}")
