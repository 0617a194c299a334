"""WIQA's accuracy: overall, by type of question and by number of hops (Table 2, Figure 3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from eval.score.statistics import bootstrap_mean
from eval.systems.wiqa.labels import LABELS, Label
from eval.systems.wiqa.questions import TYPES, Question


def score_answers(questions: Sequence[Question], answers: Mapping[str, Label | None], seed: int) -> dict[str, Any]:
    """Scores of the questions that have an answer.

    Args:
        answers: question id → predicted label; None could not be read and is wrong.
        seed: of the interval.
    """
    asked = [question for question in questions if question.id in answers]
    right = {question.id: answers[question.id] == question.answer for question in asked}
    interval = bootstrap_mean([float(right[question.id]) for question in asked], seed=seed)
    unparsed = sum(answers[question.id] is None for question in asked)
    return {
        "accuracy": interval.mean,
        "accuracy_interval": [interval.low, interval.high],
        "by_type": _grouped(right, [(name, [q for q in asked if q.type == kind]) for kind, name in TYPES.items()]),
        "by_hops": _grouped(right, [(str(hops), [q for q in asked if q.hops == hops]) for hops in _hops(asked)]),
        "counts": {
            "questions": len(asked),
            "gold": _labels(question.answer for question in asked),
            "predicted": _labels(answers[question.id] for question in asked),
        },
        "unparsed": {"share": unparsed / len(asked), "questions": unparsed},
    }


def accuracy(questions: Sequence[Question], answers: Mapping[str, Label | None]) -> dict[str, Any]:
    """Accuracy overall and by type, of a baseline."""
    right = {question.id: answers[question.id] == question.answer for question in questions}
    groups = [(name, [q for q in questions if q.type == kind]) for kind, name in TYPES.items()]
    by_type = _grouped(right, groups)
    return {
        "accuracy": sum(right.values()) / len(right),
        "by_type": {name: row["accuracy"] for name, row in by_type.items()},
    }


def _hops(questions: Sequence[Question]) -> list[int]:
    return sorted({question.hops for question in questions if question.hops})


def _grouped(right: Mapping[str, bool], groups: Sequence[tuple[str, Sequence[Question]]]) -> dict[str, Any]:
    return {
        name: {
            "accuracy": sum(right[question.id] for question in group) / len(group) if group else None,
            "questions": len(group),
        }
        for name, group in groups
    }


def _labels(labels: Any) -> dict[str, int]:
    counts = Counter(labels)
    return {label: counts[label] for label in LABELS}
