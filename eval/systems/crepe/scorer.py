"""CREPE's scores: macro-F1 over all (event, step) pairs in one flat list, and what the paper breaks it down by.

The headline is the official scorer's: scikit-learn's macro-F1 over the labels that occur in gold or predictions, with
changes read as `gold.official_label` reads them. The corrected variant reads changes by their meaning and always
averages over the three classes. On the published files both are the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from d2e_sft.util.errors import UserError
from d2e_sft.util.table import Table, percent
from eval.compare.measures.measure import Measure, digest, measure
from eval.score.counts import f1_by_class
from eval.score.counts import macro_f1 as macro_f1_of
from eval.score.statistics import LEVEL, RESAMPLES
from eval.systems.conversations import wording
from eval.systems.crepe.gold import EQUALLY, LABELS, LESS, MORE, Procedure, label_in
from eval.systems.crepe.predictions import Predictions

# Appendix C splits the procedures at their mean number of steps, which it gives as 7.
LONG = 7
_CLASSES = (EQUALLY, LESS, MORE)
_AT_ONCE = 200


class Pairs(NamedTuple):
    """The (event, step) pairs of some procedures.

    Attributes:
        procedures: The procedures, in the file's order.
        rows: A row for each pair: gold and predicted label as the official scorer reads them, both by their meaning
            (corrected), place of the procedure, number of its steps, and number of words of the step. Also the label
            of another annotator and the topic; None if unknown.
    """

    procedures: Sequence[Procedure]
    rows: pd.DataFrame


def flatten(gold: Sequence[Procedure], predicted: Predictions) -> Pairs:
    """Return the pairs that have predictions, in the official scorer's order; UserError if no procedure has a pair."""
    kept = [procedure for procedure in gold if procedure.id in predicted.official]
    topics = topics_of(gold)
    rows = [
        {
            "gold": label_in(block.events, event, official=True),
            "predicted": predicted.official[procedure.id][step][number],
            "corrected_gold": label_in(block.events, event, official=False),
            "corrected_predicted": predicted.corrected[procedure.id][step][number],
            "procedure": place,
            "steps": len(procedure.blocks),
            "words": len(block.step.split()),
            "human": procedure.human[step][number] if procedure.human else None,
            "topic": topics.get(procedure.id),
        }
        for place, procedure in enumerate(kept)
        for step, block in enumerate(procedure.blocks)
        for number, event in enumerate(procedure.events)
    ]
    if not rows:
        raise UserError("CREPE: there is no (event, step) pair to score; expected procedures whose events change")
    return Pairs(kept, pd.DataFrame(rows))


def macro_f1(gold: ArrayLike, predicted: ArrayLike, labels: Sequence[int] | None = None) -> float | None:
    """Return macro-F1 over `labels`, by default those that occur, as in the official script; None without pairs."""
    if not np.size(gold):
        return None
    by_class, occurs = f1_by_class(_confusions(np.zeros(np.size(gold), int), gold, predicted))
    return float(by_class[0][occurs[0] if labels is None else list(labels)].mean())


def score(pairs: Pairs, *, draws: int, seed: int) -> dict[str, Any]:
    """Return all scores of some pairs, with the baselines; chance is drawn `draws` times."""
    rows = pairs.rows
    gold, predicted = rows.gold.to_numpy(), rows.predicted.to_numpy()
    confusions = _confusions(rows.procedure, gold, predicted)
    # The bootstrap is over procedures, since the pairs of one depend on each other.
    count = len(confusions)
    drawn = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=RESAMPLES)  # (R, P)
    bounds = np.quantile(macro_f1_of(drawn @ confusions), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    total = confusions.sum(axis=0)
    changed = gold != EQUALLY
    both = changed & (predicted != EQUALLY)
    every = macro_f1(gold[changed], predicted[changed], [LESS, MORE])
    return {
        "macro_f1": macro_f1(gold, predicted),
        "macro_f1_interval": list(map(float, bounds)),
        "accuracy": float(np.mean(gold == predicted)),
        "f1": dict(zip(LABELS, map(float, f1_by_class(total)[0]), strict=True)),
        "corrected": {"macro_f1": macro_f1(rows.corrected_gold, rows.corrected_predicted, _CLASSES)},
        # The sub-tasks of section 6: whether the likelihood changes at all, and which way. `all_changed` takes every
        # pair that changes in gold; a prediction of no change is then wrong.
        "did_it_change": {"macro_f1": macro_f1(changed, predicted != EQUALLY), "pairs": len(gold)},
        "which_way": {
            "macro_f1": macro_f1(gold[both], predicted[both]),
            "pairs": int(both.sum()),
            "all_changed": {"macro_f1": every, "pairs": int(changed.sum())},
        },
        "by_length": _by_length(pairs),
        "by_topic": _by_group({name: rows[rows.topic == name] for name in rows.topic.dropna().unique()}),
        "confusion": total.reshape(3, 3).tolist(),
        "counts": {
            "procedures": int(rows.procedure.nunique()),
            "pairs": len(gold),
            "gold": _label_counts(gold),
            "predicted": _label_counts(predicted),
        },
        "baselines": {
            **baselines(gold, seeds=draws, seed=seed),
            **({} if rows.human.isna().any() else {"human": {"macro_f1": macro_f1(gold, rows.human)}}),
        },
    }


def topics_of(gold: Sequence[Procedure]) -> dict[str, str]:
    """Return the topic of each procedure of a published file; nothing of another file."""
    goals = digest([procedure.goal for procedure in gold])
    found: Mapping[str, list[int]] = next(
        (own["topics"] for own in wording("crepe/topics") if own["goals"] == goals), {}
    )
    return {str(number): topic for topic, numbers in found.items() for number in numbers}


def _by_length(pairs: Pairs) -> dict[str, Any]:
    """Score by number of steps, and by words of a step against their mean, from which Table 6's numbers really are."""
    rows = pairs.rows
    mean = float(np.mean([len(step.split()) for procedure in pairs.procedures for step in procedure.steps]))
    groups = {f"more than {LONG} steps": rows.steps > LONG, f"up to {LONG} steps": rows.steps <= LONG}
    groups |= {f"step of more than {mean:.1f} words": rows.words > mean}
    groups |= {f"step of up to {mean:.1f} words": rows.words <= mean}
    groups |= {f"{steps} steps": rows.steps == steps for steps in sorted(rows.steps.unique())}
    return _by_group({name: rows[inside] for name, inside in groups.items()})


def _by_group(groups: Mapping[str, pd.DataFrame]) -> dict[str, Any]:
    return {
        name: {"macro_f1": macro_f1(own.gold, own.predicted), "procedures": own.procedure.nunique(), "pairs": len(own)}
        for name, own in groups.items()
    }


def _label_counts(labels: NDArray[np.int64]) -> dict[str, int]:
    return {name: int((labels == number).sum()) for number, name in enumerate(LABELS)}


def _confusions(procedure: ArrayLike, gold: ArrayLike, predicted: ArrayLike, classes: int = 3) -> NDArray[Any]:
    """Return the confusion matrix of each procedure, gold × predicted, as (procedures, classes²)."""
    found = np.zeros((int(np.max(procedure)) + 1, classes * classes), dtype=np.int64)
    np.add.at(found, (np.asarray(procedure), np.asarray(gold, int) * classes + np.asarray(predicted, int)), 1)
    return found


def measures(pairs: Pairs) -> list[Measure]:
    """Return the scores by procedure, since the pairs of one procedure depend on each other."""
    rows, names = pairs.rows, [procedure.id for procedure in pairs.procedures]
    gold = digest([rows.procedure.tolist(), rows.gold.tolist(), names])
    changed = rows.gold != EQUALLY, rows.predicted != EQUALLY
    found = []
    for name, form, (right, said), classes in (
        ("macro-F1", "macro_f1", (rows.gold, rows.predicted), 3),
        ("macro-F1, corrected", "macro_f1_all", (rows.corrected_gold, rows.corrected_predicted), 3),
        ("did it change: macro-F1", "macro_f1", changed, 2),
        ("accuracy", "share", (rows.gold, rows.predicted), 3),
    ):
        counts = _confusions(rows.procedure, right, said, classes)
        if form == "share":
            counts = np.stack([counts.reshape(-1, 3, 3).trace(axis1=1, axis2=2), counts.sum(axis=1)], axis=1)
        found += measure(name, form, "procedures", gold, dict(zip(names, counts.tolist(), strict=False)))
    return found


def baselines(gold: NDArray[np.int64], *, seeds: int, seed: int) -> dict[str, Any]:
    """Score both baselines on the gold labels (n,).

    Chance is drawn `seeds` times; its macro-F1 is the mean, with the standard deviation of a single draw.
    """
    majority = np.full_like(gold, EQUALLY)
    rng = np.random.default_rng(seed)
    parts = []
    for start in range(0, seeds, _AT_ONCE):
        drawn = rng.integers(len(LABELS), size=(min(_AT_ONCE, seeds - start), len(gold)))  # (D, n)
        cells = np.arange(len(drawn))[:, None] * 9 + gold * 3 + drawn
        counts = np.bincount(cells.ravel(), minlength=len(drawn) * 9).reshape(-1, 9)
        parts.append(macro_f1_of(counts))
    chance = np.concatenate(parts)
    return {
        "chance": {"macro_f1": float(chance.mean()), "deviation": float(chance.std()), "draws": seeds},
        "majority": {"macro_f1": macro_f1(gold, majority)},
    }


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
    if "human" in baselines:
        figures.append(("human: macro-F1", baselines["human"]["macro_f1"], "the second annotator of the paper"))
    if "unparsed" in scores:
        figures.append(("unparsed", scores["unparsed"]["share"], f"{scores['unparsed']['pairs']} pairs"))
    rows = [[name, percent(share), remark] for name, share, remark in figures]
    rows += [["note", "", note] for note in notes]
    gold, predicted = scores["counts"]["gold"], scores["counts"]["predicted"]
    labels = [[name, percent(scores["f1"][name]), str(gold[name]), str(predicted[name])] for name in LABELS]
    length, topic = (
        [
            [name, percent(row["macro_f1"]), str(row["procedures"]), str(row["pairs"])]
            for name, row in scores[key].items()
        ]
        for key in ("by_length", "by_topic")
    )
    return [
        Table.of(["score", "%", "remarks"], rows, title),
        Table.of(["label", "F1 %", "gold", "predicted"], labels, "By label"),
        Table.of(["length", "macro-F1 %", "procedures", "pairs"], length, "By length"),
        *([Table.of(["topic", "macro-F1 %", "procedures", "pairs"], topic, "By topic, our labels")] if topic else []),
    ]
