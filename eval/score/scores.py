"""Scores of a run: a mean with its interval for each dataset × relation × format, and over all samples.

`overall` weighs every sample alike, so a large dataset dominates it; `macro` weighs every group alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, get_args

from d2e_sft.data.sample import NLI_LABELS
from d2e_sft.util.errors import UserError
from eval.score.extract import Mode
from eval.score.predictions import Prediction
from eval.score.statistics import bootstrap_mean

GroupKey = tuple[str, str, str]  # dataset, relation, format
ALL: GroupKey = ("all", "all", "all")
METRICS = ("mean", "exact_match", "f1")
MODES: tuple[Mode, ...] = get_args(Mode)


def group_of(prediction: Prediction) -> GroupKey:
    """The (dataset, relation, format) that a prediction is scored under."""
    return prediction.dataset, prediction.relation, prediction.format


def group_predictions(predictions: Sequence[Prediction]) -> dict[GroupKey, list[Prediction]]:
    """Predictions by dataset × relation × format, groups in order of appearance."""
    groups: dict[GroupKey, list[Prediction]] = {}
    for prediction in predictions:
        groups.setdefault(group_of(prediction), []).append(prediction)
    return groups


def by_relation(groups: Iterable[GroupKey]) -> dict[str, list[GroupKey]]:
    """Groups by relation, in order of appearance."""
    relations: dict[str, list[GroupKey]] = {}
    for key in groups:
        relations.setdefault(key[1], []).append(key)
    return relations


def score_predictions(predictions: Sequence[Prediction], *, seed: int = 0) -> dict[str, Any]:
    """JSON-ready scores: `overall`, `macro`, `relations` and `groups`, as fractions with 95 % bootstrap intervals.

    `mean` is the mean of exact match and F1 of each sample, the number that the paper reports; `extraction` holds the
    shares of strict, of lenient and of no extraction. A group of format mcq also holds `set_accuracy`; one of format
    nli `label_shares`, how often each label was predicted (`other`: an output without a label), and `gold_shares`.
    An entry of `relations` is the plain mean over its groups, as the paper averages.

    Raises:
        UserError: there is no prediction to score.
    """
    if not predictions:
        raise UserError("no prediction to score; expected at least one")
    groups = {key: _score(key, members, seed) for key, members in group_predictions(predictions).items()}
    return {
        "overall": _score(ALL, predictions, seed),
        "macro": _average(list(groups.values())),
        "relations": [
            {"relation": relation, **_average([groups[key] for key in keys])}
            for relation, keys in by_relation(groups).items()
        ],
        "groups": list(groups.values()),
    }


def _score(key: GroupKey, predictions: Sequence[Prediction], seed: int) -> dict[str, Any]:
    dataset, relation, fmt = key
    scores: dict[str, Any] = {"dataset": dataset, "relation": relation, "format": fmt, "n": len(predictions)}
    for metric in METRICS:
        scores[metric] = asdict(bootstrap_mean([getattr(p, metric) for p in predictions], seed=seed))
    if fmt == "mcq":
        scores["set_accuracy"] = asdict(bootstrap_mean([p.set_accuracy or 0.0 for p in predictions], seed=seed))
    scores["extraction"] = {mode: sum(p.extraction == mode for p in predictions) / len(predictions) for mode in MODES}
    if fmt == "nli":
        scores["label_shares"] = _label_shares(predictions)
        scores["gold_shares"] = gold_shares(predictions)
    return scores


def gold_shares(predictions: Sequence[Prediction]) -> dict[str, float]:
    """The share of each nli label among the gold answers."""
    return {label: sum(p.gold == [label] for p in predictions) / len(predictions) for label in NLI_LABELS}


def _average(groups: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    means = {metric: sum(group[metric]["mean"] for group in groups) / len(groups) for metric in METRICS}
    return {"groups": len(groups), **means}


def _label_shares(predictions: Sequence[Prediction]) -> dict[str, float]:
    shares = {
        label: sum(p.parsed and p.answer == [label] for p in predictions) / len(predictions) for label in NLI_LABELS
    }
    return {**shares, "other": sum(not p.parsed for p in predictions) / len(predictions)}
