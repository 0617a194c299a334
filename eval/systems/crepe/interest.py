"""Scores by entity of interest (Table 6): whether a step names the entity that decides about an event.

The authors labelled the changes of dev by hand (`data_dev_v2_eoi.json` in `codex_error_analysis/data`). This is the
gold file with two labels in its events: `EOI` ("True": the step names the entity) and `Singular` ("True": the step is
enough to answer).
Their script gives each event the labels of its first change, at all steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from d2e_sft.util.errors import UserError
from d2e_sft.util.table import Table, percent
from eval.systems.crepe.gold import EQUALLY, Block, Procedure, label_in, official_label
from eval.systems.crepe.predictions import Labels
from eval.systems.crepe.scorer import macro_f1
from eval.systems.json_file import Row, read_json

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


def read_labels(path: Path) -> dict[tuple[str, str], dict[str, Truth]]:
    """Read the labels of each event, those of its first change.

    Raises:
        UserError: the file is damaged, or its events have no such labels.
    """
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
                "macro_f1": macro_f1([g for g, _ in pairs], [p for _, p in pairs]),
                "official_macro_f1": macro_f1([g for g, _ in counted], [p for _, p in counted]) if predicted else None,
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
