"""Scores by entity of interest (Table 6): whether a step names the entity that decides about an event.

The authors labelled the changes of dev by hand (`data_dev_v2_eoi.json` in `codex_error_analysis/data`): the gold file
with `EOI` ("True": the step names the entity) and `Singular` ("True": the step alone tells the answer) in its events.
Their script gives each event the labels of its first change, at all steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from d2e_sft.util.errors import UserError
from d2e_sft.util.table import Table, percent
from eval.systems.crepe.gold import EQUALLY, Procedure, label_in, official_label
from eval.systems.crepe.predictions import Predicted
from eval.systems.crepe.scorer import macro_f1
from eval.systems.json_file import expect_list, expect_object, read_json, shown

# Field of the labels → what it says where it is "True" and "False".
FACTORS = {
    "EOI": ("entity of interest mentioned", "entity of interest not mentioned"),
    "Singular": ("answerable by the step", "answerable by earlier steps"),
}
Labels = Mapping[tuple[str, str], Mapping[str, bool]]  # by procedure and event
Rows = Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]  # the raw dictionaries of each block, by procedure


def read_labels(path: Path) -> dict[tuple[str, str], dict[str, bool]]:
    """The labels of each event, those of its first change.

    Raises:
        UserError: the file is damaged, or its events have no such labels.
    """
    labels: dict[tuple[str, str], dict[str, bool]] = {}
    for name, value in expect_object(read_json(path), str(path)).items():
        place = f"{path}, procedure {name!r}"
        for block in expect_list(expect_object(value, place).get("steps"), f"{place}, steps")[1:]:
            for row in expect_list(block, place):
                if expect_object(row, place).get("type") == "event" and (name, row.get("event")) not in labels:
                    labels[name, row["event"]] = {field: _truth(row, field, place) for field in FACTORS}
    return labels


def _truth(row: Mapping[str, Any], field: str, place: str) -> bool:
    value = row.get(field)
    if value not in ("True", "False"):
        raise UserError(
            f"{place}, event {row.get('event')!r}: {field}: got {shown(value)}; expected 'True' or 'False'",
            remedy="name the authors' codex_error_analysis/data/data_dev_v2_eoi.json",
        )
    return bool(value == "True")


def score_by_interest(
    labels: Labels, procedures: Sequence[Procedure], predicted: Mapping[str, Predicted], rows: Rows | None
) -> dict[str, Any]:
    """Macro-F1 of each group of (event, step) pairs, each pair once, and as the official script counts.

    Args:
        labels: of the events; pairs of others are counted as unlabelled.
        rows: of the predictions, for the official count: a pair counts once for each dictionary of its step, with the
            gold and predicted label that stood there so far. None leaves it out.
    """
    kept = [procedure for procedure in procedures if procedure.id in predicted]
    groups: dict[str, Any] = {}
    for field, names in FACTORS.items():
        for truth, name in zip((True, False), names, strict=True):
            chosen = [(p, n) for p in kept for n, event in enumerate(p.events) if _is(labels, p, event, field, truth)]
            pairs = [pair for procedure, number in chosen for pair in _pairs(procedure, predicted, number)]
            counted = [pair for p, n in chosen for pair in _counted(rows[p.id], p.events[n])] if rows else []
            groups[name] = {
                "macro_f1": macro_f1(*_columns(pairs)),
                "official_macro_f1": macro_f1(*_columns(counted)) if rows else None,
                "pairs": len(pairs),
            }
    unlabelled = sum(len(p.blocks) for p in kept for event in p.events if (p.id, event) not in labels)
    return {**groups, "unlabelled_pairs": unlabelled}


def _is(labels: Labels, procedure: Procedure, event: str, field: str, truth: bool) -> bool:
    return labels.get((procedure.id, event), {}).get(field) is truth


def _pairs(procedure: Procedure, predicted: Mapping[str, Predicted], number: int) -> Iterator[tuple[int, int]]:
    for block, row in zip(procedure.blocks, predicted[procedure.id].official, strict=True):
        yield label_in(block.events, procedure.events[number], official=True), row[number]


def _counted(blocks: Sequence[Sequence[Mapping[str, Any]]], event: str) -> Iterator[tuple[int, int]]:
    for block in blocks[1:]:
        gold = found = EQUALLY
        for row in block:
            if row.get("event") == event and row["type"] == "event":
                gold = official_label(row["change"])
            elif row.get("event") == event and row["type"] == "predicted_event":
                found = official_label(row["change"])
            yield gold, found


def _columns(pairs: Sequence[tuple[int, int]]) -> tuple[list[int], list[int]]:
    return [gold for gold, _ in pairs], [found for _, found in pairs]


def interest_table(scores: Mapping[str, Any]) -> Table:
    """The groups, with what is unlabelled in the title."""
    left_out = scores["unlabelled_pairs"]
    title = "By entity of interest" + f" ({left_out} pairs are unlabelled)" * bool(left_out)
    rows = [
        [name, percent(row["macro_f1"]), percent(row["official_macro_f1"]), str(row["pairs"])]
        for name, row in scores.items()
        if name != "unlabelled_pairs"
    ]
    return Table.of(["pairs", "macro-F1 %", "as the official script counts, %", "pairs, each once"], rows, title)
