"""CREPE's scores: macro-F1 over all (event, step) pairs in one flat list, and what the paper breaks it down by.

The headline is the official scorer's: scikit-learn's macro-F1 over the labels that occur in gold or predictions, with
changes read as `gold.label_of` reads them officially. The corrected variant reads changes by their meaning and always
averages over the three classes. On the published files both are the same numbers.

Table 6 breaks scores down by what the authors labelled by hand. *Relation*: `event_entity_inference` of a
`predicted_event` says how its change follows from the last predicted entity state that concerns it: entailment,
contradiction or unrelated. Only predicted changes have one, so "equally likely" is never predicted in this table,
which is why its scores are low. *Interest*: `data_dev_v2_eoi.json` is the gold file with labels in its events: `EOI`
(the step names the entity that decides about the event) and `Singular` (the step is enough to answer). The authors'
script gives each event the labels of its first change, at all steps. Both are in `codex_error_analysis/data` of their
repository.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from d2e_sft.util.errors import UserError, shortened
from d2e_sft.util.table import Table, percent
from eval.score.measures import Measure, digest, measure
from eval.score.statistics import bootstrap_counts, f1_by_class
from eval.score.statistics import macro_f1 as macro_f1_of
from eval.systems.asking import wording
from eval.systems.crepe.gold import (
    EQUALLY,
    LABELS,
    LESS,
    MORE,
    CrepePredictions,
    CrepeProcedure,
    OfficialBlock,
    label_of,
)
from eval.systems.reading import GoldRow, read_json

# Appendix C splits the procedures at their mean number of steps, which it gives as 7.
LONG = 7
_CLASSES = (EQUALLY, LESS, MORE)
_AT_ONCE = 200
RELATIONS = ("entailment", "contradiction", "unrelated")
# Field of the labels → names of the groups in which it is "True" and "False".
FACTORS = {
    "EOI": ("entity of interest mentioned", "entity of interest not mentioned"),
    "Singular": ("answerable by the step", "answerable by earlier steps"),
}
Truth = Literal["True", "False"]
InterestLabels = Mapping[tuple[str, str], Mapping[str, Truth]]  # by procedure and event


class Pairs(NamedTuple):
    """The (event, step) pairs of some procedures, a row for each.

    A row has gold and predicted label as the official scorer reads them, and both by their meaning (corrected). It has
    place and id of the procedure, number of its steps, number of words of the step, and the event. Also the label of
    another annotator and the topic; None if unknown.
    """

    procedures: Sequence[CrepeProcedure]
    rows: pd.DataFrame


def flatten(gold: Sequence[CrepeProcedure], predicted: CrepePredictions) -> Pairs:
    """Return the pairs that have predictions, in the official scorer's order; UserError if no procedure has a pair."""
    kept = [procedure for procedure in gold if procedure.id in predicted.changes]
    topics = topics_of(gold)
    rows = [
        {
            "gold": label_of(block.events.get(event), official=True),
            "predicted": label_of(changes.get(event), official=True),
            "corrected_gold": label_of(block.events.get(event), official=False),
            "corrected_predicted": label_of(changes.get(event), official=False),
            "procedure": place,
            "id": procedure.id,
            "event": event,
            "steps": len(procedure.blocks),
            "words": len(block.step.split()),
            "human": label_of(procedure.human[step].get(event), official=True) if procedure.human else None,
            "topic": topics.get(procedure.id),
        }
        for place, procedure in enumerate(kept)
        for step, (block, changes) in enumerate(zip(procedure.blocks, predicted.changes[procedure.id], strict=True))
        for event in procedure.events
    ]
    if not rows:
        raise UserError("CREPE: there is no (event, step) pair to score; expected procedures whose events change")
    return Pairs(kept, pd.DataFrame(rows))


def topics_of(gold: Sequence[CrepeProcedure]) -> dict[str, str]:
    """Return the topic of each procedure of a published file; nothing of another file."""
    goals = digest([procedure.goal for procedure in gold])
    topics = (file["topics"] for file in wording("crepe/topics") if file["goals"] == goals)
    return {str(number): topic for numbers_of in topics for topic, numbers in numbers_of.items() for number in numbers}


def macro_f1(gold: ArrayLike, predicted: ArrayLike, labels: Sequence[int] | None = None) -> float | None:
    """Return macro-F1 over `labels`, by default those that occur, as in the official script; None without pairs."""
    if not np.size(gold):
        return None
    by_class, occurs = f1_by_class(_confusions(np.zeros(np.size(gold), int), gold, predicted))
    return float(by_class[0][occurs[0] if labels is None else list(labels)].mean())


def _confusions(procedure: ArrayLike, gold: ArrayLike, predicted: ArrayLike, classes: int = 3) -> NDArray[Any]:
    """Return the confusion matrix of each procedure, gold × predicted, as (procedures, classes²)."""
    counts = np.zeros((int(np.max(procedure)) + 1, classes * classes), dtype=np.int64)
    np.add.at(counts, (np.asarray(procedure), np.asarray(gold, int) * classes + np.asarray(predicted, int)), 1)
    return counts


def score(pairs: Pairs, *, draws: int, seed: int) -> dict[str, Any]:
    """Return all scores of some pairs, with the baselines; chance is drawn `draws` times."""
    rows = pairs.rows
    gold, predicted = rows.gold.to_numpy(), rows.predicted.to_numpy()
    confusions = _confusions(rows.procedure, gold, predicted)
    # The bootstrap is over procedures, since the pairs of one depend on each other.
    interval = bootstrap_counts("macro_f1", confusions, seed=seed)
    total = confusions.sum(axis=0)
    changed = gold != EQUALLY
    both = changed & (predicted != EQUALLY)
    all_changed = macro_f1(gold[changed], predicted[changed], [LESS, MORE])
    human = {} if rows.human.isna().any() else {"human": {"macro_f1": macro_f1(gold, rows.human)}}
    topics = {name: rows.topic == name for name in rows.topic.dropna().unique()}
    return {
        "macro_f1": macro_f1(gold, predicted),
        "macro_f1_interval": [interval.low, interval.high],
        "accuracy": float(np.mean(gold == predicted)),
        "f1": dict(zip(LABELS, map(float, f1_by_class(total)[0]), strict=True)),
        "corrected": {"macro_f1": macro_f1(rows.corrected_gold, rows.corrected_predicted, _CLASSES)},
        # The sub-tasks of section 6: whether the likelihood changes at all, and which way. `all_changed` takes every
        # pair that changes in gold; a prediction of no change is then wrong.
        "did_it_change": {"macro_f1": macro_f1(changed, predicted != EQUALLY), "pairs": len(gold)},
        "which_way": {
            "macro_f1": macro_f1(gold[both], predicted[both]),
            "pairs": int(both.sum()),
            "all_changed": {"macro_f1": all_changed, "pairs": int(changed.sum())},
        },
        "by_length": _by_group(rows, _lengths(pairs)),
        "by_topic": _by_group(rows, topics),
        "confusion": total.reshape(3, 3).tolist(),
        "counts": {
            "procedures": int(rows.procedure.nunique()),
            "pairs": len(gold),
            "gold": _label_counts(gold),
            "predicted": _label_counts(predicted),
        },
        "baselines": {**baselines(gold, seeds=draws, seed=seed), **human},
    }


def _lengths(pairs: Pairs) -> dict[str, pd.Series[bool]]:
    """Return groups by number of steps, and by words of a step against their mean, as Table 6's numbers really are."""
    rows = pairs.rows
    mean = float(np.mean([len(step.split()) for procedure in pairs.procedures for step in procedure.steps]))
    return {
        f"more than {LONG} steps": rows.steps > LONG,
        f"up to {LONG} steps": rows.steps <= LONG,
        f"step of more than {mean:.1f} words": rows.words > mean,
        f"step of up to {mean:.1f} words": rows.words <= mean,
        **{f"{steps} steps": rows.steps == steps for steps in sorted(rows.steps.unique())},
    }


def _by_group(rows: pd.DataFrame, groups: Mapping[str, pd.Series[bool]]) -> dict[str, Any]:
    chosen = {name: rows[inside] for name, inside in groups.items()}
    return {
        name: {"macro_f1": macro_f1(part.gold, part.predicted), "procedures": part.id.nunique(), "pairs": len(part)}
        for name, part in chosen.items()
    }


def _label_counts(labels: NDArray[np.int64]) -> dict[str, int]:
    return {name: int((labels == number).sum()) for number, name in enumerate(LABELS)}


def baselines(gold: NDArray[np.int64], *, seeds: int, seed: int) -> dict[str, Any]:
    """Score both baselines on the gold labels (n,).

    Chance is drawn `seeds` times; its macro-F1 is the mean, with the standard deviation of a single draw.
    """
    rng = np.random.default_rng(seed)
    parts = []
    for start in range(0, seeds, _AT_ONCE):
        drawn = rng.integers(len(LABELS), size=(min(_AT_ONCE, seeds - start), len(gold)))  # (D, n)
        cells = np.arange(len(drawn))[:, None] * 9 + gold * 3 + drawn
        parts.append(macro_f1_of(np.bincount(cells.ravel(), minlength=len(drawn) * 9).reshape(-1, 9)))
    chance = np.concatenate(parts)
    return {
        "chance": {"macro_f1": float(chance.mean()), "deviation": float(chance.std()), "draws": seeds},
        "majority": {"macro_f1": macro_f1(gold, np.full_like(gold, EQUALLY))},
    }


def measures(pairs: Pairs) -> list[Measure]:
    """Return the scores by procedure, since the pairs of one procedure depend on each other."""
    rows, names = pairs.rows, [procedure.id for procedure in pairs.procedures]
    gold = digest([rows.procedure.tolist(), rows.gold.tolist(), names])
    measured = []
    for name, form, truth, predicted, classes in (
        ("macro-F1", "macro_f1", rows.gold, rows.predicted, 3),
        ("macro-F1, corrected", "macro_f1_all", rows.corrected_gold, rows.corrected_predicted, 3),
        ("did it change: macro-F1", "macro_f1", rows.gold != EQUALLY, rows.predicted != EQUALLY, 2),
        ("accuracy", "share", rows.gold, rows.predicted, 3),
    ):
        counts = _confusions(rows.procedure, truth, predicted, classes)
        if form == "share":
            counts = np.stack([counts.reshape(-1, 3, 3).trace(axis1=1, axis2=2), counts.sum(axis=1)], axis=1)
        measured += measure(name, form, "procedures", gold, dict(zip(names, counts.tolist(), strict=False)))
    return measured


def tables(scores: dict[str, Any], title: str, notes: Sequence[str]) -> list[Table]:
    low, high = scores["macro_f1_interval"]
    way, by_chance = scores["which_way"], scores["baselines"]["chance"]
    all_changed = way["all_changed"]
    drawn = f"mean of {by_chance['draws']} draws, deviation {percent(by_chance['deviation'])}"
    figures = [
        ("macro-F1", scores["macro_f1"], f"{percent(low)}–{percent(high)}"),
        ("macro-F1, corrected", scores["corrected"]["macro_f1"], "changes by meaning, three classes"),
        ("accuracy", scores["accuracy"], ""),
        ("did it change: macro-F1", scores["did_it_change"]["macro_f1"], f"{scores['counts']['pairs']} pairs"),
        ("which way: macro-F1", way["macro_f1"], f"{way['pairs']} pairs, changed in gold and prediction"),
        ("which way, all changed", all_changed["macro_f1"], f"{all_changed['pairs']} pairs, changed in gold"),
        ("chance: macro-F1", by_chance["macro_f1"], drawn),
        ("majority: macro-F1", scores["baselines"]["majority"]["macro_f1"], ""),
    ]
    if human := scores["baselines"].get("human"):
        figures.append(("human: macro-F1", human["macro_f1"], "the second annotator of the paper"))
    if unread := scores.get("unparsed"):
        figures.append(("unparsed", unread["share"], f"{unread['pairs']} pairs"))
    rows = [(name, percent(share), remark) for name, share, remark in figures]
    rows += [("note", "", note) for note in notes]
    gold, predicted = scores["counts"]["gold"], scores["counts"]["predicted"]
    labels = [(name, percent(scores["f1"][name]), gold[name], predicted[name]) for name in LABELS]
    shown = [
        Table.of(["score", "%", "remarks"], rows, title),
        Table.of(["label", "F1 %", "gold", "predicted"], labels, "By label"),
        _group_table("length", scores["by_length"], "By length"),
    ]
    if scores["by_topic"]:
        shown.append(_group_table("topic", scores["by_topic"], "By topic, our labels"))
    if relations := scores.get("by_relation"):
        rows = [(name, percent(relations[name]["macro_f1"]), relations[name]["pairs"]) for name in RELATIONS]
        title = f"By logical relation (predicted changes without one: {relations['unlabelled_changes']})"
        shown.append(Table.of(["predicted changes", "macro-F1 %", "number"], rows, title))
    if interest := scores.get("by_interest"):
        names = ("macro_f1", "official_macro_f1", "pairs")
        groups = {name: group for name, group in interest.items() if name != "unlabelled_pairs"}
        rows = [(name, *map(percent, (row[key] for key in names[:2])), row["pairs"]) for name, row in groups.items()]
        left_out = interest["unlabelled_pairs"]
        title = "By entity of interest" + f" ({left_out} pairs are unlabelled)" * bool(left_out)
        columns = ["pairs", "macro-F1 %", "as the official script counts, %", "pairs, each once"]
        shown.append(Table.of(columns, rows, title))
    return shown


def _group_table(name: str, groups: Mapping[str, Any], title: str) -> Table:
    rows = [(group, percent(row["macro_f1"]), row["procedures"], row["pairs"]) for group, row in groups.items()]
    return Table.of([name, "macro-F1 %", "procedures", "pairs"], rows, title)


def score_by_relation(gold: Sequence[CrepeProcedure], predicted: Sequence[CrepeProcedure]) -> dict[str, Any] | None:
    """Return macro-F1 of each relation's pairs, over the labels that occur; None if no prediction is labelled."""
    pairs: dict[str, list[tuple[int, int]]] = {name: [] for name in RELATIONS}
    unlabelled = 0
    known = {procedure.id: procedure for procedure in gold}
    blocks = [pair for output in predicted for pair in zip(known[output.id].blocks, output.blocks, strict=True)]
    for truth, row in ((truth, row) for truth, block in blocks for row in block.root if row.type == "predicted_event"):
        value = row.event_entity_inference
        if value is None:
            unlabelled += 1
        elif isinstance(value, list) and value and value[-1] in RELATIONS:
            label = label_of(truth.events.get(row.event), official=True)
            pairs[value[-1]].append((label, label_of(row.change or "", official=True)))
        else:
            raise UserError(
                f"predicted event {row.event!r}: event_entity_inference: got {shortened(value)}; expected an entity, "
                f"an attribute and one of {', '.join(RELATIONS)}"
            )
    if not any(pairs.values()):
        return None
    scores = {name: {"macro_f1": _of_pairs(labels), "pairs": len(labels)} for name, labels in pairs.items()}
    return {**scores, "unlabelled_changes": unlabelled}


def _of_pairs(pairs: Sequence[tuple[int, int]]) -> float | None:
    return macro_f1([gold for gold, _ in pairs], [predicted for _, predicted in pairs])


class _Labelled(GoldRow):
    type: str = ""
    event: str = ""
    EOI: Truth | None = None
    Singular: Truth | None = None


class _LabelledProcedure(GoldRow):
    steps: list[list[_Labelled]]


def read_labels(path: Path) -> dict[tuple[str, str], dict[str, Truth]]:
    """Read the labels of each event, those of its first change; UserError if the file is damaged or has none."""
    labels: dict[tuple[str, str], dict[str, Truth]] = {}
    for name, procedure in read_json(path, dict[str, _LabelledProcedure]).items():
        for row in (row for block in procedure.steps[1:] for row in block if row.type == "event"):
            if row.EOI is None or row.Singular is None:
                raise UserError(
                    f"{path}: {name}: event {row.event!r} has no EOI or Singular; expected 'True' or 'False' for each",
                    remedy="name the authors' codex_error_analysis/data/data_dev_v2_eoi.json",
                )
            labels.setdefault((name, row.event), {"EOI": row.EOI, "Singular": row.Singular})
    return labels


def score_by_interest(labels: InterestLabels, pairs: Pairs, outputs: Sequence[CrepeProcedure]) -> dict[str, Any]:
    """Return macro-F1 of each group of (event, step) pairs, counting each pair once and as the official script does.

    The official count has a pair for each dictionary of its step in `outputs`, with the gold and predicted label so
    far; without outputs there is no such count. Pairs of events without `labels` are counted as unlabelled.
    """
    blocks = {procedure.id: procedure.blocks for procedure in outputs}
    keys = list(zip(pairs.rows.id, pairs.rows.event, strict=True))
    groups: dict[str, Any] = {}
    for field, names in FACTORS.items():
        for truth, name in zip(("True", "False"), names, strict=True):
            rows = pairs.rows[[labels.get(event, {}).get(field) == truth for event in keys]]
            events = dict.fromkeys(zip(rows.id, rows.event, strict=True))
            counted = [pair for id_, event in events for pair in _counted(blocks.get(id_, ()), event)]
            groups[name] = {
                "macro_f1": macro_f1(rows.gold, rows.predicted),
                "official_macro_f1": _of_pairs(counted) if outputs else None,
                "pairs": len(rows),
            }
    return {**groups, "unlabelled_pairs": sum(event not in labels for event in keys)}


def _counted(blocks: Sequence[OfficialBlock], event: str) -> Iterator[tuple[int, int]]:
    for block in blocks:
        labels = {"event": EQUALLY, "predicted_event": EQUALLY}
        for row in block.root:
            if row.event == event and row.type in labels:
                labels[row.type] = label_of(row.change or "", official=True)
            yield labels["event"], labels["predicted_event"]
