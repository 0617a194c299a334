"""WIQA's scores as tables."""

from __future__ import annotations

from typing import Any

from eval.systems.system import ScoreTable
from eval.systems.wiqa.labels import LABELS
from eval.systems.wiqa.questions import TYPES


def tables(scores: dict[str, Any], title: str, notes: list[str]) -> list[ScoreTable]:
    """The tables of a report: accuracy beside the baselines, hops, consistency, labels."""
    return [_accuracy(scores, title, notes), _hops(scores), _consistency(scores), _labels(scores)]


def _accuracy(scores: dict[str, Any], title: str, notes: list[str]) -> ScoreTable:
    low, high = scores["accuracy_interval"]
    types = list(TYPES.values())
    rows = [
        [
            "predictions",
            *(_percent(scores["by_type"][name]["accuracy"]) for name in types),
            f"{_percent(scores['accuracy'])} ({_percent(low)}–{_percent(high)})",
        ]
    ]
    for name, row in scores["baselines"].items():
        rows.append([name, *(_percent(row["by_type"][kind]) for kind in types), _percent(row["accuracy"])])
    rows.append(
        [
            "questions",
            *(str(scores["by_type"][name]["questions"]) for name in types),
            str(scores["counts"]["questions"]),
        ]
    )
    rows.append(["unparsed", *[""] * len(types), _percent(scores["unparsed"]["share"])])
    rows += [[f"note: {note}", *[""] * (len(types) + 1)] for note in notes]
    return ScoreTable(title, ["accuracy, %", *types, "all"], rows)


def _hops(scores: dict[str, Any]) -> ScoreTable:
    rows = [[name, _percent(row["accuracy"]), str(row["questions"])] for name, row in scores["by_hops"].items()]
    return ScoreTable("By number of hops", ["hops", "accuracy, %", "questions"], rows)


def _consistency(scores: dict[str, Any]) -> ScoreTable:
    transitive, disjunctive = scores["consistency"]["transitive"], scores["consistency"]["disjunctive"]
    rows = [
        ["transitive", _percent(transitive["score"]), str(transitive["count"]), _percent(transitive["random"])],
        [
            "transitive, over single hops",
            _percent(transitive["one_hop"]["score"]),
            str(transitive["one_hop"]["count"]),
            _percent(transitive["random"]),
        ],
        ["disjunctive", _percent(disjunctive["score"]), str(disjunctive["count"]), _percent(disjunctive["random"])],
    ]
    return ScoreTable("Consistency", ["consistency", "%", "groups of questions", "random, %"], rows)


def _labels(scores: dict[str, Any]) -> ScoreTable:
    counts = scores["counts"]
    rows = [[label, str(counts["gold"][label]), str(counts["predicted"][label])] for label in LABELS]
    return ScoreTable("By label", ["label", "gold", "predicted"], rows)


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"
