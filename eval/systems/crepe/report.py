"""CREPE's scores as tables."""

from __future__ import annotations

from typing import Any

from eval.systems.crepe.labels import LABELS
from eval.systems.system import ScoreTable


def tables(scores: dict[str, Any], title: str, notes: list[str]) -> list[ScoreTable]:
    """The tables of a report: the main one with the baselines, then the breakdowns."""
    return [_main(scores, title, notes), _classes(scores), _lengths(scores)]


def _main(scores: dict[str, Any], title: str, notes: list[str]) -> ScoreTable:
    low, high = scores["macro_f1_interval"]
    way, baselines = scores["which_way"], scores["baselines"]
    interval = "" if low is None else f"{_percent(low)}–{_percent(high)}"
    chance = baselines["chance"]
    rows = [
        ["macro-F1", _percent(scores["macro_f1"]), interval],
        ["macro-F1, corrected", _percent(scores["corrected"]["macro_f1"]), "changes by meaning, three classes"],
        ["accuracy", _percent(scores["accuracy"]), ""],
        [
            "did it change: macro-F1",
            _percent(scores["did_it_change"]["macro_f1"]),
            f"{scores['counts']['pairs']} pairs",
        ],
        ["which way: macro-F1", _percent(way["macro_f1"]), f"{way['pairs']} pairs, changed in gold and prediction"],
        [
            "which way, all changed",
            _percent(way["all_changed"]["macro_f1"]),
            f"{way['all_changed']['pairs']} pairs, changed in gold",
        ],
        [
            "chance: macro-F1",
            _percent(chance["macro_f1"]),
            f"mean of {chance['draws']} draws, deviation {100 * chance['deviation']:.1f}",
        ],
        ["majority: macro-F1", _percent(baselines["majority"]["macro_f1"]), ""],
    ]
    if "unparsed" in scores:
        rows.append(["unparsed", _percent(scores["unparsed"]["share"]), f"{scores['unparsed']['pairs']} pairs"])
    rows += [["note", "", note] for note in notes]
    return ScoreTable(title, ["score", "%", "remarks"], rows, left=["score", "remarks"])


def _classes(scores: dict[str, Any]) -> ScoreTable:
    counts = scores["counts"]
    rows = [
        [name, _percent(scores["f1"][name]), str(counts["gold"][name]), str(counts["predicted"][name])]
        for name in LABELS
    ]
    return ScoreTable("By label", ["label", "F1 %", "gold", "predicted"], rows)


def _lengths(scores: dict[str, Any]) -> ScoreTable:
    rows = [
        [name, _percent(row["macro_f1"]), str(row["procedures"]), str(row["pairs"])]
        for name, row in scores["by_length"].items()
    ]
    return ScoreTable("By length", ["length", "macro-F1 %", "procedures", "pairs"], rows)


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"
