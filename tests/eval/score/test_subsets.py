"""Measures by subset, each against a case worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from eval.score.predictions import Prediction
from eval.score.scores import score_predictions
from eval.score.subsets import AVERAGE, contains, gives, headline, score_subsets
from tests.factories import choice, prediction, story


def test_the_gap_is_the_accuracy_on_aligned_rows_less_that_on_conflict_rows() -> None:
    # 4 aligned rows of which 3 are right, 5 conflict rows of which 2 are: 0.75 − 0.4.
    rows = [story(n, "aligned", "garage" if n < 3 else "attic", habit="garage") for n in range(4)]
    rows += [story(10 + n, "conflict", "garage" if n < 2 else "kitchen") for n in range(5)]
    (scores,) = score_subsets(rows)
    assert list(scores.subsets) == ["aligned", "conflict"]
    assert (scores.subsets["aligned"].n, scores.subsets["conflict"].n) == (4, 5)
    assert scores.subsets["aligned"].accuracy.mean == 0.75
    assert scores.subsets["conflict"].accuracy.mean == 0.4
    assert scores.gap.mean == pytest.approx(0.35)
    assert scores.gap.low < 0 < scores.gap.high, "nine rows decide nothing"
    assert scores.balanced.mean == pytest.approx(0.575)


def test_the_habit_rate_counts_answers_that_are_the_habit_in_any_accepted_form() -> None:
    said = ["garage", "Kitchen", "the kitchen.", "cookhouse", "attic", ""]
    (scores,) = score_subsets([story(n, "conflict", s, habit=["kitchen", "cookhouse"]) for n, s in enumerate(said)])
    own = scores.subsets["conflict"]
    assert own.with_habit == own.n == 6
    assert own.habit_rate.mean == pytest.approx(3 / 6)
    assert own.accuracy.mean == pytest.approx(1 / 6)
    assert scores.gap is None


def test_outputs_fall_into_four_cells_and_the_memorisation_ratio_follows_from_them() -> None:
    outputs = {
        "in the garage": "context alone",
        "garage, not the kitchen": "both",
        "the kitchen": "habit alone",
        "our kitchen": "habit alone",
        "the attic": "neither",
    }
    (scores,) = score_subsets([story(n, "conflict", output) for n, output in enumerate(outputs)])
    own = scores.subsets["conflict"]
    cells = own.contains.model_dump()
    assert cells == {"context_only": 0.2, "habit_only": 0.4, "both": 0.2, "neither": 0.2}
    assert own.memorisation_ratio.mean == pytest.approx(0.6 / (0.4 + 0.6))  # P_o / (P_s + P_o), `both` in each
    assert own.memorisation_ratio.low < 0.6 < own.memorisation_ratio.high


def test_where_neither_answer_is_ever_given_there_is_no_ratio() -> None:
    (scores,) = score_subsets([story(n, "conflict", "attic") for n in range(3)])
    assert scores.subsets["conflict"].memorisation_ratio is None
    assert scores.subsets["conflict"].contains


def test_rows_without_a_habit_count_for_accuracy_alone() -> None:
    rows = [story(1, "conflict", "kitchen"), story(2, "conflict", "garage", habit=[]), story(3, "gold", "x", habit=[])]
    (scores,) = score_subsets(rows)
    conflict, gold = scores.subsets["conflict"], scores.subsets["gold"]
    assert (conflict.n, conflict.with_habit, conflict.accuracy.mean) == (2, 1, 0.5)
    assert conflict.habit_rate.mean == 1.0
    assert (gold.with_habit, gold.habit_rate, gold.contains) == (0, None, None)


def test_unanswerable_rows_have_a_habit_rate_and_no_memorisation_ratio() -> None:
    rows = [story(n, "unanswerable", "kitchen" if n < 3 else "unknown", gold=["unknown"]) for n in range(4)]
    own = score_subsets(rows)[0].subsets["unanswerable"]
    assert own.habit_rate.mean == 0.75
    assert (own.contains, own.memorisation_ratio) == (None, None)


def test_the_average_weighs_datasets_alike_and_is_over_those_with_both_subsets() -> None:
    big = [story(n, "aligned", "garage", habit="garage", dataset="big") for n in range(8)]
    big += [story(20 + n, "conflict", "kitchen" if n < 6 else "garage", dataset="big") for n in range(8)]
    small = [story(n, name, "garage", dataset="small") for n, name in enumerate(["aligned", "conflict"])]
    other = [story(1, "conflict", "kitchen", dataset="conflict alone")]
    scores = score_subsets([*big, *small, *other])
    assert [own.dataset for own in scores] == ["big", "small", "conflict alone", AVERAGE]
    average = scores[-1]
    assert average.subsets["conflict"].n == 9
    assert average.subsets["conflict"].accuracy.mean == pytest.approx((2 / 8 + 1) / 2)
    assert average.subsets["conflict"].habit_rate.mean == pytest.approx((6 / 8 + 0) / 2)
    assert average.gap.mean == pytest.approx((6 / 8 + 0) / 2)


def test_what_is_told_first_has_both_subsets_if_any_has() -> None:
    both, conflict, gold = {"aligned": 30, "conflict": 20}, {"conflict": 30}, {"gold": 30}
    few = {"aligned": 19, "conflict": 20}
    assert headline([both, conflict, both, gold]) == 2
    assert headline([gold, both, conflict]) == 1
    assert headline([both, few]) == 0
    assert headline([few, gold]) == 0
    assert headline([conflict, gold]) == 0
    assert headline([gold, gold]) == 1


def test_an_average_leaves_out_datasets_with_few_rows() -> None:
    def rows(dataset: str, each: int, right: bool) -> list[Prediction]:
        said = "garage" if right else "attic"
        return [story(n, name, said, dataset=dataset) for name in ("aligned", "conflict") for n in range(each)]

    three = [*rows("one", 20, True), *rows("two", 30, True), *rows("three", 1, False)]
    assert score_subsets(three)[-1].subsets["conflict"].accuracy.mean == 1
    assert [own.dataset for own in score_subsets([*rows("one", 20, True), *rows("three", 1, False)])] == [
        "one",
        "three",
    ]


def says(answer: list[str], **changes: Any) -> Prediction:
    """An scq prediction between cup, spoon and fork."""
    options = ["a cup", "a spoon", "a fork"]
    return choice(1, False, **{"options": options, "answer": answer, "output": "(B)", **changes})


def test_the_answer_is_compared_with_the_habit_as_the_format_compares() -> None:
    assert gives(says(["a spoon"]), ["Spoon"])
    assert not gives(says(["a spoon"]), [])
    assert not gives(says([]), ["a spoon"])
    sets = says(["a fork", "a spoon"], format="mcq")
    assert gives(sets, ["a spoon", "a fork"])
    assert not gives(sets, ["a spoon"])
    assert gives(prediction(1, False), ["negative"])
    assert not gives(prediction(1, False, extraction="none"), ["negative"])


def test_a_letter_stands_for_its_option_and_a_label_is_contained_only_where_it_is_the_answer() -> None:
    assert contains(says(["a spoon"], output="The correct option is: (B)"), ["a spoon"])
    assert contains(says([], output="Perhaps spoons"), ["a spoon"]), "as characters: spoons contains spoon"
    assert not contains(says([], output="A"), ["The"]), "what normalises to nothing is contained in nothing"
    unsure = prediction(1, False, output="positive or negative", answer=["positive or negative"], extraction="none")
    assert not contains(unsure, ["negative"])


def test_scores_have_subsets_only_where_rows_are_tagged() -> None:
    assert "subsets" not in score_predictions([prediction(1, True)]).content()
    content = score_predictions([prediction(1, True), story(2, "conflict", "kitchen")]).content()
    (own,) = content["subsets"]
    assert own["dataset"] == "habit"
    assert "gap" not in own
    assert own["subsets"]["conflict"]["habit_rate"]["mean"] == 1.0
