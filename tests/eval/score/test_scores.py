"""Groups, means and label shares."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from d2e_sft.util.errors import UserError
from eval.score.metrics import EventScores
from eval.score.predictions import Prediction
from eval.score.scores import score_predictions
from tests.factories import choice, prediction


def scores_of(predictions: Sequence[Prediction]) -> dict[str, Any]:
    return score_predictions(predictions).content()


def test_groups_stand_in_order_of_appearance_with_their_own_means() -> None:
    scores = scores_of([choice(1, True), prediction(2, False), choice(3, True), prediction(4, True)])
    assert [(g["dataset"], g["relation"], g["format"], g["n"]) for g in scores["groups"]] == [
        ("kitchen", "causal", "scq", 2),
        ("stories", "temporal", "nli", 2),
    ]
    assert [g["exact_match"]["mean"] for g in scores["groups"]] == [1.0, 0.5]


def test_overall_weighs_samples_alike_and_macro_weighs_groups_alike() -> None:
    scores = scores_of([choice(1, True), prediction(2, False), prediction(3, False), prediction(4, False)])
    assert scores["overall"]["exact_match"]["mean"] == 0.25
    assert scores["overall"]["n"] == 4
    assert scores["macro"] == {"groups": 2, "mean": 0.5, "exact_match": 0.5, "f1": 0.5}


def test_the_mean_is_that_of_exact_match_and_f1_of_each_sample() -> None:
    group = scores_of([choice(1, True), choice(2, False, f1=0.5), choice(3, False)])["groups"][0]
    assert group["mean"]["mean"] == pytest.approx((1 + 0.25 + 0) / 3)
    assert group["mean"]["low"] == 0.0
    assert group["mean"]["high"] == 1.0


def test_a_relation_averages_its_groups_and_not_its_samples() -> None:
    others = [choice(n, False, dataset="pantry") for n in range(5)]
    scores = scores_of([choice(1, True), *others, prediction(1, True)])
    assert scores["relations"] == [
        {"relation": "causal", "groups": 2, "mean": 0.5, "exact_match": 0.5, "f1": 0.5},
        {"relation": "temporal", "groups": 1, "mean": 1.0, "exact_match": 1.0, "f1": 1.0},
    ]


def test_set_accuracy_is_that_of_mcq_alone() -> None:
    reordered = choice(1, True, format="mcq", exact_match=0.0, f1=1.0, set_accuracy=1.0)
    scores = scores_of([reordered, choice(2, False, format="mcq", set_accuracy=0.0), choice(3, True)])
    assert scores["groups"][0]["set_accuracy"]["mean"] == 0.5
    assert scores["groups"][0]["exact_match"]["mean"] == 0.0
    assert "set_accuracy" not in scores["groups"][1]
    assert "set_accuracy" not in scores["overall"]


def test_events_are_averaged_over_the_answers_that_have_them() -> None:
    right = EventScores(token_f1=1, event_f1=1, hit_at_1=1, exact_match=1)
    wrong = EventScores(token_f1=0.5, event_f1=0, hit_at_1=0, exact_match=0)
    samples = [choice(number, True, events=own) for number, own in enumerate((right, wrong, None))]
    group = scores_of(samples)["groups"][0]
    assert group["events"]["n"] == 2
    assert (group["events"]["token_f1"]["mean"], group["events"]["hit_at_1"]["mean"]) == (0.75, 0.5)
    assert "events" not in scores_of(samples[2:])["groups"][0]


def test_label_shares_count_outputs_without_a_label_as_other() -> None:
    unparsed = prediction(3, False, output="hm", answer=["hm"], extraction="none", gold=["negative"])
    scores = scores_of([prediction(1, True), prediction(2, True), unparsed, prediction(4, False)])
    assert scores["groups"][0]["label_shares"] == {"positive": 0.5, "negative": 0.25, "other": 0.25}
    assert scores["groups"][0]["gold_shares"] == {"positive": 0.75, "negative": 0.25}
    assert "label_shares" not in scores_of([choice(1, True)])["groups"][0]


def test_extraction_shares_are_given_for_each_group_and_for_all() -> None:
    rows = [prediction(1, True), prediction(2, False, extraction="none"), choice(3, True, extraction="lenient")]
    scores = scores_of([*rows, choice(4, True, extraction="lenient")])
    assert scores["groups"][0]["extraction"] == {"strict": 0.5, "lenient": 0.0, "none": 0.5}
    assert scores["overall"]["extraction"] == {"strict": 0.25, "lenient": 0.5, "none": 0.25}


def test_scores_are_json_and_repeat_exactly() -> None:
    rows = [prediction(n, n % 3 == 0) for n in range(20)]
    assert json.loads(json.dumps(scores_of(rows))) == scores_of(rows)


def test_nothing_to_score_is_an_error() -> None:
    with pytest.raises(UserError, match="no prediction"):
        score_predictions([])
