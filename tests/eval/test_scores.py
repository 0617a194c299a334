"""Groups, means and label shares."""

from __future__ import annotations

import json

import pytest

from d2e_sft.errors import UserError
from eval.scores import score_predictions
from tests.eval.fake_runs import choice, prediction


def test_groups_stand_in_order_of_appearance_with_their_own_means() -> None:
    scores = score_predictions([choice(1, True), prediction(2, False), choice(3, True), prediction(4, True)])
    assert [(g["dataset"], g["relation"], g["format"], g["n"]) for g in scores["groups"]] == [
        ("kitchen", "causal", "scq", 2),
        ("stories", "temporal", "nli", 2),
    ]
    assert [g["exact_match"]["mean"] for g in scores["groups"]] == [1.0, 0.5]


def test_overall_weighs_samples_alike_and_macro_weighs_groups_alike() -> None:
    scores = score_predictions([choice(1, True), prediction(2, False), prediction(3, False), prediction(4, False)])
    assert scores["overall"]["exact_match"]["mean"] == 0.25
    assert scores["overall"]["n"] == 4
    assert scores["macro"] == {"groups": 2, "exact_match": 0.5, "f1": 0.5}


def test_label_shares_count_outputs_without_a_label_as_other() -> None:
    unparsed = prediction(3, False, output="hm", answer=["hm"], parsed=False)
    scores = score_predictions([prediction(1, True), prediction(2, True), unparsed, prediction(4, False)])
    assert scores["groups"][0]["label_shares"] == {"positive": 0.5, "negative": 0.25, "other": 0.25}
    assert scores["groups"][0]["parsed"] == 0.75
    assert "label_shares" not in score_predictions([choice(1, True)])["groups"][0]


def test_scores_are_json_and_repeat_exactly() -> None:
    rows = [prediction(n, n % 3 == 0) for n in range(20)]
    assert json.loads(json.dumps(score_predictions(rows))) == score_predictions(rows)


def test_nothing_to_score_is_an_error() -> None:
    with pytest.raises(UserError, match="no prediction"):
        score_predictions([])
