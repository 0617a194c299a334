"""Accuracy by the number of operations that touched the box, changed and unchanged boxes apart (section 4.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from eval.score.statistics import Interval, bootstrap_mean
from eval.systems.boxes.contents import right
from eval.systems.boxes.gold import Question, states
from eval.systems.system import ScoreTable


@dataclass(frozen=True)
class Row:
    """Accuracy over the questions with so many operations."""

    numops: int
    changed: bool
    n: int
    accuracy: Interval
    baseline: Interval


def score(
    questions: Sequence[Question], predictions: Sequence[str | None], baseline: Sequence[str], *, boxes: int, seed: int
) -> dict[str, Any]:
    """All scores, as fractions.

    Args:
        predictions: what is said of each question's box; None where nothing was said.
        baseline: the random answers.
        boxes: how many questions a whole state has; parts of states are left out of the state accuracy.
    """
    hits = [right(text, question.answer) for text, question in zip(predictions, questions, strict=True)]
    chance = [right(text, question.answer) for text, question in zip(baseline, questions, strict=True)]
    by_line = {question.line: hit for question, hit in zip(questions, hits, strict=True)}
    whole = [all(by_line[question.line] for question in state) for state in states(questions) if len(state) == boxes]
    changed = [question.changed for question in questions]
    return {
        "accuracy": _mean(hits, seed),
        "accuracy_changed": _mean(_where(hits, changed, True), seed),
        "accuracy_unchanged": _mean(_where(hits, changed, False), seed),
        "state_accuracy": _mean(whole, seed),
        "baseline_accuracy": _mean(chance, seed),
        "baseline_accuracy_changed": _mean(_where(chance, changed, True), seed),
        "baseline_accuracy_unchanged": _mean(_where(chance, changed, False), seed),
        "unparsed": sum(text is None for text in predictions) / len(predictions),
        "questions": len(questions),
        "questions_changed": sum(changed),
        "states": len(whole),
        "by_numops": [asdict(row) for row in _by_numops(questions, hits, chance, seed)],
    }


def tables(scores: dict[str, Any]) -> list[ScoreTable]:
    """The scores in percent with 95 % intervals."""
    main = [
        ("all questions", scores["questions"], "accuracy", "baseline_accuracy"),
        ("changed boxes", scores["questions_changed"], "accuracy_changed", "baseline_accuracy_changed"),
        (
            "unchanged boxes",
            scores["questions"] - scores["questions_changed"],
            "accuracy_unchanged",
            "baseline_accuracy_unchanged",
        ),
        ("whole states", scores["states"], "state_accuracy", None),
    ]
    rows = [
        (name, f"{n:,}", _percent(scores[own]), "" if chance is None else _percent(scores[chance]))
        for name, n, own, chance in main
    ]
    detail = [
        (
            str(row["numops"]),
            "yes" if row["changed"] else "no",
            f"{row['n']:,}",
            _percent(row["accuracy"]),
            _percent(row["baseline"]),
        )
        for row in scores["by_numops"]
    ]
    return [
        ScoreTable(
            f"Boxes: percent with 95 % bootstrap intervals; unparsed {100 * scores['unparsed']:.1f} %",
            ("", "n", "accuracy", "random baseline"),
            rows,
        ),
        ScoreTable(
            "By the number of operations that touched the box",
            ("operations", "changed", "n", "accuracy", "random baseline"),
            detail,
            left=("changed",),
        ),
    ]


def _by_numops(questions: Sequence[Question], hits: Sequence[bool], chance: Sequence[bool], seed: int) -> list[Row]:
    rows = []
    for changed in (True, False):
        places = [i for i, question in enumerate(questions) if question.changed == changed]
        for numops in sorted({questions[i].numops for i in places}):
            here = [i for i in places if questions[i].numops == numops]
            own, random = [hits[i] for i in here], [chance[i] for i in here]
            rows.append(
                Row(numops, changed, len(here), bootstrap_mean(own, seed=seed), bootstrap_mean(random, seed=seed))
            )
    return rows


def _where(values: Sequence[bool], changed: Sequence[bool], wanted: bool) -> list[bool]:
    return [value for value, own in zip(values, changed, strict=True) if own == wanted]


def _mean(values: Sequence[bool], seed: int) -> dict[str, float] | None:
    return asdict(bootstrap_mean(values, seed=seed)) if values else None


def _percent(interval: dict[str, float] | None) -> str:
    if interval is None:
        return "–"
    return f"{100 * interval['mean']:.1f} [{100 * interval['low']:.1f}, {100 * interval['high']:.1f}]"
