"""Scores of a run: a mean with its interval for each dataset × relation × format, and over all samples.

`overall` weighs every sample alike, so a large dataset dominates it; `macro` weighs every group alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from d2e_sft.errors import UserError
from d2e_sft.sample import NLI_LABELS
from eval.intervals import bootstrap_mean
from eval.predictions import Prediction

GroupKey = tuple[str, str, str]  # dataset, relation, format
ALL: GroupKey = ("all", "all", "all")


def group_of(prediction: Prediction) -> GroupKey:
    """The (dataset, relation, format) that a prediction is scored under."""
    return prediction.dataset, prediction.relation, prediction.format


def group_predictions(predictions: Sequence[Prediction]) -> dict[GroupKey, list[Prediction]]:
    """Predictions by dataset × relation × format, groups in order of appearance."""
    groups: dict[GroupKey, list[Prediction]] = {}
    for prediction in predictions:
        groups.setdefault(group_of(prediction), []).append(prediction)
    return groups


def score_predictions(predictions: Sequence[Prediction], *, seed: int = 0) -> dict[str, Any]:
    """JSON-ready scores: `overall`, `macro` and `groups`, as fractions with 95 % bootstrap intervals.

    A group of format nli also holds `label_shares`: how often each label was predicted, and `other` for
    outputs without a label.

    Raises:
        UserError: there is no prediction to score.
    """
    if not predictions:
        raise UserError("no prediction to score; expected at least one")
    groups = [_score(key, members, seed) for key, members in group_predictions(predictions).items()]
    return {
        "overall": _score(ALL, predictions, seed),
        "macro": {
            "groups": len(groups),
            "exact_match": sum(group["exact_match"]["mean"] for group in groups) / len(groups),
            "f1": sum(group["f1"]["mean"] for group in groups) / len(groups),
        },
        "groups": groups,
    }


def _score(key: GroupKey, predictions: Sequence[Prediction], seed: int) -> dict[str, Any]:
    dataset, relation, fmt = key
    scores: dict[str, Any] = {
        "dataset": dataset,
        "relation": relation,
        "format": fmt,
        "n": len(predictions),
        "exact_match": asdict(bootstrap_mean([p.exact_match for p in predictions], seed=seed)),
        "f1": asdict(bootstrap_mean([p.f1 for p in predictions], seed=seed)),
        "parsed": sum(p.parsed for p in predictions) / len(predictions),
    }
    if fmt == "nli":
        scores["label_shares"] = _label_shares(predictions)
    return scores


def _label_shares(predictions: Sequence[Prediction]) -> dict[str, float]:
    shares = {
        label: sum(p.parsed and p.answer == [label] for p in predictions) / len(predictions) for label in NLI_LABELS
    }
    return {**shares, "other": sum(not p.parsed for p in predictions) / len(predictions)}
