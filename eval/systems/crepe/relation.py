"""Scores by how an event's change follows from the entity state that the model wrote (Table 6, logical relation).

The authors gave each predicted change of an event, where its step has predicted entity states, too, the last state
that concerns it and a relation: `entailment` (the pan is hot, so one hears sizzling), `contradiction` (the pan is
hot, so nobody touches it) or `unrelated`. These stand in the predictions themselves, as `event_entity_inference` of
`predicted_event`: in `data_dev_entity_event_inference_labeled_hainiu.json` of `codex_error_analysis/data`. Only
predicted changes have one, so "equally likely" is never predicted in this table, which is why its scores are low.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from d2e_sft.util.errors import UserError
from d2e_sft.util.table import Table, percent
from eval.systems.crepe.gold import Procedure, label_in, official_label
from eval.systems.crepe.scorer import macro_f1
from eval.systems.json_file import shown

FIELD = "event_entity_inference"
RELATIONS = ("entailment", "contradiction", "unrelated")


def score_by_relation(gold: Sequence[Procedure], predicted: Sequence[Procedure]) -> dict[str, Any] | None:
    """Macro-F1 of each relation's pairs, over the labels that occur in them; None where no prediction is labelled.

    Args:
        predicted: procedures of a file in the official output's form, with the raw dictionaries.

    Raises:
        UserError: a label is none of the three relations.
    """
    pairs: dict[str, list[tuple[int, int]]] = {name: [] for name in RELATIONS}
    unlabelled = 0
    known = {procedure.id: procedure for procedure in gold}
    for procedure in (one for one in predicted if one.id in known):
        for number, (block, rows) in enumerate(
            zip(known[procedure.id].blocks, procedure.raw["steps"][1:], strict=True), start=1
        ):
            for row in (row for row in rows if row["type"] == "predicted_event"):
                if FIELD not in row:
                    unlabelled += 1
                    continue
                relation = _relation(row, f"procedure {procedure.id!r}, block {number}")
                label = label_in(block.events, row["event"], official=True)
                pairs[relation].append((label, official_label(row["change"])))
    if not any(pairs.values()):
        return None
    found = {
        name: {"macro_f1": macro_f1([g for g, _ in some], [p for _, p in some]), "pairs": len(some)}
        for name, some in pairs.items()
    }
    return {**found, "unlabelled_changes": unlabelled}


def _relation(row: Mapping[str, Any], place: str) -> str:
    value = row[FIELD]
    if not isinstance(value, list) or not value or value[-1] not in RELATIONS:
        raise UserError(
            f"{place}, predicted event {row['event']!r}: {FIELD}: got {shown(value)}; expected an entity, an "
            f"attribute and one of {', '.join(RELATIONS)}"
        )
    return str(value[-1])


def relation_table(scores: Mapping[str, Any]) -> Table:
    """The relations, with the predicted changes that have none in the title."""
    title = f"By logical relation (predicted changes without one: {scores['unlabelled_changes']})"
    rows = [[name, percent(scores[name]["macro_f1"]), str(scores[name]["pairs"])] for name in RELATIONS]
    return Table.of(["predicted changes", "macro-F1 %", "number"], rows, title)
