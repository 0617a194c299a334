"""The tables of CREPE's scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from d2e_sft.util.table import Table, percent
from eval.systems.crepe.gold import LABELS


def tables(scores: dict[str, Any], title: str, notes: Sequence[str]) -> list[Table]:
    """Return the tables of a report: the main one with the baselines, then the breakdowns."""
    low, high = scores["macro_f1_interval"]
    way, baselines = scores["which_way"], scores["baselines"]
    chance, every = baselines["chance"], way["all_changed"]
    drawn = f"mean of {chance['draws']} draws, deviation {percent(chance['deviation'])}"
    figures = [
        ("macro-F1", scores["macro_f1"], f"{percent(low)}–{percent(high)}"),
        ("macro-F1, corrected", scores["corrected"]["macro_f1"], "changes by meaning, three classes"),
        ("accuracy", scores["accuracy"], ""),
        ("did it change: macro-F1", scores["did_it_change"]["macro_f1"], f"{scores['counts']['pairs']} pairs"),
        ("which way: macro-F1", way["macro_f1"], f"{way['pairs']} pairs, changed in gold and prediction"),
        ("which way, all changed", every["macro_f1"], f"{every['pairs']} pairs, changed in gold"),
        ("chance: macro-F1", chance["macro_f1"], drawn),
        ("majority: macro-F1", baselines["majority"]["macro_f1"], ""),
    ]
    if "unparsed" in scores:
        figures.append(("unparsed", scores["unparsed"]["share"], f"{scores['unparsed']['pairs']} pairs"))
    rows = [[name, percent(share), remark] for name, share, remark in figures]
    rows += [["note", "", note] for note in notes]
    gold, predicted = scores["counts"]["gold"], scores["counts"]["predicted"]
    labels = [[name, percent(scores["f1"][name]), str(gold[name]), str(predicted[name])] for name in LABELS]
    lengths = [
        [name, percent(row["macro_f1"]), str(row["procedures"]), str(row["pairs"])]
        for name, row in scores["by_length"].items()
    ]
    return [
        Table.of(["score", "%", "remarks"], rows, title),
        Table.of(["label", "F1 %", "gold", "predicted"], labels, "By label"),
        Table.of(["length", "macro-F1 %", "procedures", "pairs"], lengths, "By length"),
    ]
