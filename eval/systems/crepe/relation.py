"""Scores by how an event's change follows from the entity state that the model wrote (Table 6, logical relation).

If a step has predicted entity states, the authors labelled each predicted change of an event with the last state that
concerns it and a relation: `entailment` (the pan is hot, so one hears sizzling), `contradiction` (the pan is hot, so
nobody touches it) or `unrelated`. The labels are in the predictions, as `event_entity_inference` of `predicted_event`:
see `data_dev_entity_event_inference_labeled_hainiu.json` of `codex_error_analysis/data`. Only predicted changes have a
label, so "equally likely" is never predicted in this table, which is why its scores are low.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from d2e_sft.util.errors import UserError, shortened
from d2e_sft.util.table import Table, percent
from eval.systems.crepe.gold import Procedure, label_in, official_label
from eval.systems.crepe.scorer import macro_f1

RELATIONS = ("entailment", "contradiction", "unrelated")


def score_by_relation(gold: Sequence[Procedure], predicted: Sequence[Procedure]) -> dict[str, Any] | None:
    """Return macro-F1 of each relation's pairs, over the labels that occur; None if no prediction is labelled.

    Args:
        predicted: procedures of a file in the official output's form.

    Raises:
        UserError: a label is not one of the three relations.
    """
    pairs: dict[str, list[tuple[int, int]]] = {name: [] for name in RELATIONS}
    unlabelled = 0
    known = {procedure.id: procedure for procedure in gold}
    blocks = [pair for own in predicted for pair in zip(known[own.id].blocks, own.blocks, strict=True)]
    for block, row in ((block, row) for block, own in blocks for row in own.root if row.type == "predicted_event"):
        value = row.event_entity_inference
        if value is None:
            unlabelled += 1
        elif isinstance(value, list) and value and value[-1] in RELATIONS:
            label = label_in(block.events, row.event, official=True)
            pairs[value[-1]].append((label, official_label(row.change or "")))
        else:
            raise UserError(
                f"predicted event {row.event!r}: event_entity_inference: got {shortened(value)}; expected an entity, "
                f"an attribute and one of {', '.join(RELATIONS)}"
            )
    if not any(pairs.values()):
        return None
    scores = {
        name: {"macro_f1": macro_f1([g for g, _ in some], [p for _, p in some]), "pairs": len(some)}
        for name, some in pairs.items()
    }
    return {**scores, "unlabelled_changes": unlabelled}


def relation_table(scores: Mapping[str, Any]) -> Table:
    """Return a table of the relations; its title counts the predicted changes without one."""
    title = f"By logical relation (predicted changes without one: {scores['unlabelled_changes']})"
    rows = [[name, percent(scores[name]["macro_f1"]), str(scores[name]["pairs"])] for name in RELATIONS]
    return Table.of(["predicted changes", "macro-F1 %", "number"], rows, title)
