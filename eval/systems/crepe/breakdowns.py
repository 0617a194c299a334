"""Scores by what the authors labelled by hand (Table 6): the logical relation, and the entity of interest.

Relation: `event_entity_inference` of a `predicted_event` says how its change follows from the last predicted entity
state that concerns it: entailment, contradiction or unrelated. Only predicted changes have one, so "equally likely"
is never predicted in this table, which is why its scores are low.

Interest: `data_dev_v2_eoi.json` is the gold file with labels in its events: `EOI` (the step names the entity that
decides about the event) and `Singular` (the step is enough to answer). The authors' script gives each event the
labels of its first change, at all steps. Both are in `codex_error_analysis/data` of their repository.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from d2e_sft.util.errors import UserError, shortened
from d2e_sft.util.table import Table, percent
from eval.systems.crepe.gold import EQUALLY, Block, Procedure, label_in, official_label
from eval.systems.crepe.predictions import Labels
from eval.systems.crepe.scorer import macro_f1
from eval.systems.files import Row, read_json

RELATIONS = ("entailment", "contradiction", "unrelated")
# Field of the labels → names of the groups in which it is "True" and "False".
FACTORS = {
    "EOI": ("entity of interest mentioned", "entity of interest not mentioned"),
    "Singular": ("answerable by the step", "answerable by earlier steps"),
}
Truth = Literal["True", "False"]
InterestLabels = Mapping[tuple[str, str], Mapping[str, Truth]]  # by procedure and event


class _Labelled(Row):
    type: str = ""
    event: str = ""
    EOI: Truth | None = None
    Singular: Truth | None = None


class _Procedure(Row):
    steps: list[list[_Labelled]]


def score_by_relation(gold: Sequence[Procedure], predicted: Sequence[Procedure]) -> dict[str, Any] | None:
    """Return macro-F1 of each relation's pairs, over the labels that occur; None if no prediction is labelled.

    Raises UserError if a label is not one of the three relations.
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
    scores = {name: {"macro_f1": _of_pairs(some), "pairs": len(some)} for name, some in pairs.items()}
    return {**scores, "unlabelled_changes": unlabelled}


def relation_table(scores: Mapping[str, Any]) -> Table:
    """Return a table of the relations; its title counts the predicted changes without one."""
    title = f"By logical relation (predicted changes without one: {scores['unlabelled_changes']})"
    rows = [[name, percent(scores[name]["macro_f1"]), str(scores[name]["pairs"])] for name in RELATIONS]
    return Table.of(["predicted changes", "macro-F1 %", "number"], rows, title)


def read_labels(path: Path) -> dict[tuple[str, str], dict[str, Truth]]:
    """Read the labels of each event, those of its first change; UserError if the file is damaged or has none."""
    labels: dict[tuple[str, str], dict[str, Truth]] = {}
    for name, procedure in read_json(path, dict[str, _Procedure]).items():
        for row in (row for block in procedure.steps[1:] for row in block if row.type == "event"):
            if row.EOI is None or row.Singular is None:
                raise UserError(
                    f"{path}: {name}: event {row.event!r} has no EOI or Singular; expected 'True' or 'False' for each",
                    remedy="name the authors' codex_error_analysis/data/data_dev_v2_eoi.json",
                )
            labels.setdefault((name, row.event), {"EOI": row.EOI, "Singular": row.Singular})
    return labels


def score_by_interest(
    labels: InterestLabels, gold: Sequence[Procedure], official: Labels, predicted: Sequence[Procedure]
) -> dict[str, Any]:
    """Return macro-F1 of each group of (event, step) pairs, counting each pair once and as the official script does.

    Args:
        labels: Labels of the events; pairs of other events are counted as unlabelled.
        official: The predicted labels.
        predicted: Dictionaries of an official output, for the official count. It counts a pair for each dictionary of
            its step, with the gold and predicted label so far. Without them, there is no such count.
    """
    kept = [(one, number, event) for one in gold if one.id in official for number, event in enumerate(one.events)]
    blocks = {procedure.id: procedure.blocks for procedure in predicted}
    groups: dict[str, Any] = {}
    for field, names in FACTORS.items():
        for truth, name in zip(("True", "False"), names, strict=True):
            chosen = [item for item in kept if labels.get((item[0].id, item[2]), {}).get(field) == truth]
            pairs = [
                (label_in(block.events, event, official=True), row[number])
                for one, number, event in chosen
                for block, row in zip(one.blocks, official[one.id], strict=True)
            ]
            counted = [pair for one, _, event in chosen for pair in _counted(blocks.get(one.id, ()), event)]
            groups[name] = {
                "macro_f1": _of_pairs(pairs),
                "official_macro_f1": _of_pairs(counted) if predicted else None,
                "pairs": len(pairs),
            }
    unlabelled = sum(len(one.blocks) for one, _, event in kept if (one.id, event) not in labels)
    return {**groups, "unlabelled_pairs": unlabelled}


def _counted(blocks: Sequence[Block], event: str) -> Iterator[tuple[int, int]]:
    for block in blocks:
        found = {"event": EQUALLY, "predicted_event": EQUALLY}
        for row in block.root:
            if row.event == event and row.type in found:
                found[row.type] = official_label(row.change or "")
            yield found["event"], found["predicted_event"]


def interest_table(scores: Mapping[str, Any]) -> Table:
    """Return a table of the groups; its title counts the unlabelled pairs."""
    left_out = scores["unlabelled_pairs"]
    title = "By entity of interest" + f" ({left_out} pairs are unlabelled)" * bool(left_out)
    rows = [
        [name, percent(row["macro_f1"]), percent(row["official_macro_f1"]), str(row["pairs"])]
        for name, row in scores.items()
        if name != "unlabelled_pairs"
    ]
    return Table.of(["pairs", "macro-F1 %", "as the official script counts, %", "pairs, each once"], rows, title)


def _of_pairs(pairs: Sequence[tuple[int, int]]) -> float | None:
    return macro_f1([gold for gold, _ in pairs], [predicted for _, predicted in pairs])
