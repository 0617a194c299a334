"""Classes of errors in predicted schemata (paper section 3.3, table 5), by people's labels and by the gold file.

People say of each predicted attribute of an entity whether it changes at the step (1), does not change (2) or makes no
sense (3), and add those that are missing (100). The gold file says whether its clusters hold a prediction, and whether
it changes at that step or at another one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from d2e_sft.util.errors import UserError
from d2e_sft.util.table import Table, percent
from eval.compare.measures.measure import measure
from eval.systems.files import checked
from eval.systems.flat.openpi2 import FORMS
from eval.systems.openpi2 import gold as official_files
from eval.systems.openpi2.gold import (
    Procedure,
    Procedures,
    check_steps,
    digest_of,
    has_expansion,
    normalise,
    read_official,
)
from eval.systems.openpi2.metrics import scored
from eval.systems.openpi2.schemata_scores import ClusterNames, Schemas, score_schemata_corrected
from eval.systems.openpi2.task import Task
from eval.systems.system import SystemResult

MISSING = "missing"
_LABELS = {"1": "correct", "2": "no change", "3": "nonsense", "100": MISSING, "": "no label"}
_JUDGED = ("correct", "no change", "nonsense")
_PLACES = ("this step", "another step", "no cluster")
Labelled = Mapping[str, Sequence[Sequence[tuple[str, str, str]]]]  # by procedure and step: entity, attribute, label


@dataclass(frozen=True)
class GoldPlaces:
    """Where the gold file has an attribute of an entity: it changes at this step, at another one, or in no cluster."""

    clusters: ClusterNames
    changed: Sequence[set[tuple[str, str]]]

    @classmethod
    def of(cls, procedure: Procedure, expanded: bool) -> GoldPlaces:
        changed = [
            {
                (normalise(states.entity), normalise(change.attribute))
                for states in procedure.states
                for change in states.steps[place]
            }
            for place in range(len(procedure.steps))
        ]
        return cls(ClusterNames.of(procedure.clusters, expanded), changed)

    def place(self, step: int, entity: str, attribute: str) -> str:
        """Return one of `_PLACES` for a step, counted from 0."""
        pairs = list(self.clusters.matches(normalise(entity), normalise(attribute)))
        return _PLACES[2] if not pairs else _PLACES[0 if self.changed[step].intersection(pairs) else 1]


def _counted(gold: Procedures, labelled: Labelled, expanded: bool) -> dict[str, Counter[str]]:
    """Return for each label how many attributes the gold file has where."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for key, steps in labelled.items():
        places = GoldPlaces.of(gold[key], expanded)
        for number, rows in enumerate(steps):
            for entity, attribute, label in rows:
                found[label][places.place(number, entity, attribute)] += 1
    return found


def errors_by_gold(gold: Procedures, predictions: Schemas) -> tuple[dict[str, Any], Table]:
    """Return how many predictions the gold file has where, and how many of its changes are missing, with a table."""
    labelled = {
        key: [[(entity, name, "") for entity, names in step.items() for name in names] for step in steps]
        for key, steps in predictions.items()
    }
    rows, detail = [], {}
    for name, expanded in [("plain", False), ("expanded", True)][: 1 + has_expansion(gold)]:
        own = _counted(gold, labelled, expanded)[""]
        local = score_schemata_corrected(gold, predictions, expanded=expanded).attributes_local
        detail[name] = {place: own[place] for place in _PLACES} | {MISSING: local.gold - local.gold_found}
        parts = (percent(own[place] / own.total() if own else None) for place in _PLACES)
        rows.append((name, own.total(), *parts, local.gold - local.gold_found, local.gold))
    columns = ("clusters", "predicted", *(f"{place} %" for place in _PLACES), MISSING, "of")
    return detail, Table.of(columns, rows, "Errors by the gold file: where a predicted attribute changes")


class SchemaErrors(Task[Procedures, Labelled]):
    """Predicted schemata that people labelled, in the form of the published analyses or flat."""

    kind = "errors"
    official = (official_files.EXPANDED, official_files.CLUSTERED)

    def read_gold(self, path: Path, options: Any) -> Procedures:
        return official_files.read_clustered(path)

    def read_predictions(self, path: Path, gold: Procedures, options: Any) -> Labelled:
        content = read_official(path, list[Any])
        # A published procedure ends with the word "annotated".
        steps = {key: [step for step in found if not isinstance(step, str)] for key, found in content.items()}
        labelled = checked(dict[str, list[dict[str, list[tuple[str, str | int]]]]], steps, str(path))
        check_steps(path, labelled, {key: one.steps for key, one in gold.items()})
        return {key: [list(_rows(path, key, step)) for step in found] for key, found in labelled.items()}

    def template(self, gold: Procedures, options: Any) -> Iterator[dict[str, Any]]:
        """Return one line per step; a step with more predictions gets more lines."""
        for key, procedure in gold.items():
            yield from (
                {"procedure": key, "step": step, **dict.fromkeys(FORMS[self.kind][1], "")}
                for step in range(1, len(procedure.steps) + 1)
            )

    def evaluate(self, gold: Procedures, answers: Labelled, options: Any, seed: int) -> SystemResult:
        """Return the share of each class among the labelled predictions; what is missing is counted against them."""
        expanded = has_expansion(gold)
        found = _counted(gold, answers, expanded)
        classes = [name for name in _LABELS.values() if name in found]
        judged = sum(found[name].total() for name in classes if name in _JUDGED)
        rows: list[tuple[Any, ...]] = []
        detail: dict[str, dict[str, Any]] = {}
        for name in classes:
            count = found[name].total()
            share = count / judged if judged else None
            detail[name] = {"count": count, "share": share, **{place: found[name][place] for place in _PLACES}}
            rows.append((name, count, percent(share), *(percent(found[name][place] / count) for place in _PLACES)))
        columns = ("label", "n", "% of labelled", *(f"gold: {place} %" for place in _PLACES))
        title = f"Errors by people's labels ({scored(len(answers), len(gold))}{', with expansion' * expanded})"
        counts = {
            key: [sum(row[2] in kinds for step in steps for row in step) for kinds in (_JUDGED[:1], _JUDGED)]
            for key, steps in answers.items()
        }
        measures = measure("correct by people's labels", "share", "procedures", digest_of(gold, answers), counts)
        scores = {"errors_correct": detail.get("correct", {}).get("share"), "errors": detail}
        return SystemResult(scores, [Table.of(columns, rows, title)], measures=measures)


def _rows(path: Path, key: str, step: Mapping[str, Sequence[tuple[str, str | int]]]) -> Iterator[tuple[str, str, str]]:
    """Yield entity, attribute and label; the published files write an empty attribute where none is missing."""
    for entity, (attribute, label) in ((entity, row) for entity, rows in step.items() for row in rows):
        name = _LABELS.get(str(label), str(label) if label in _LABELS.values() else "")
        if not name:
            raise UserError(
                f"{path}: {key}: {attribute!r} of {entity!r} has the label {label!r}; expected one of "
                + ", ".join(f"{own!r} ({name})" for own, name in _LABELS.items() if own)
            )
        if attribute.strip():
            yield entity, attribute.strip(), name
