"""Which metric applies how to each format, against hand-worked values."""

from __future__ import annotations

import pytest

from eval.score.extract import Extraction
from eval.score.metrics import exact_match, option_key
from eval.score.scoring import AnswerScores, score_answer, score_output
from tests.tiny import make_sample


def test_an_output_becomes_a_prediction_that_keeps_sample_and_text() -> None:
    sample = make_sample(1, format="scq", options=["a cup", "a spoon"], answers=["a cup"])
    read = score_output(sample, "The correct option is: (B)", "The correct option is:")
    assert (read.id, read.dataset, read.gold, read.output) == (
        sample.id,
        sample.dataset,
        ["a cup"],
        "The correct option is: (B)",
    )
    assert (read.answer, read.extraction, read.exact_match, read.f1) == (["a spoon"], "strict", 0.0, 0.0)


def test_a_prediction_keeps_its_sample_s_subset_and_habit() -> None:
    sample = make_sample(1, subset="conflict", habit=["the lake", "lake"])
    read = score_output(sample, "The answer is: the lake", "The answer is:")
    assert (read.subset, read.habit) == ("conflict", ["the lake", "lake"])
    assert (score_output(make_sample(1), "x", "The answer is:").subset) is None


def test_answers_of_several_events_are_scored_as_a_set_too() -> None:
    events = ["Trees fell", "a roof flew off"]
    sample = make_sample(1, format="qa", answers=["Trees fell; a roof flew off", *events], options=[])
    tagged = sample.model_copy(update={"meta": {"spans": events, "triggers": ["fell", "flew"]}})
    read = score_output(tagged, "The answer is: Trees fell", "The answer is:")
    assert (read.exact_match, read.f1) == (1.0, 1.0)
    assert read.events is not None
    assert (read.events.exact_match, read.events.hit_at_1) == (0.0, 1.0)
    assert score_output(sample, "The answer is: Trees fell", "The answer is:").events is None


def test_qa_takes_the_best_accepted_answer() -> None:
    assert score_answer("qa", Extraction(("red house",), "strict"), ["blue", "the red house"])[:2] == (1.0, 1.0)


def test_nli_scores_the_label_and_nothing_else() -> None:
    assert score_answer("nli", Extraction(("positive",), "strict"), ["positive"])[:2] == (1.0, 1.0)
    assert score_answer("nli", Extraction(("negative",), "strict"), ["positive"])[:2] == (0.0, 0.0)
    assert score_answer("nli", Extraction(("positive",), "none"), ["positive"])[:2] == (0.0, 0.0)
    assert score_answer("nli", Extraction((), "none"), ["positive"])[:2] == (0.0, 0.0)


def test_scq_gives_partial_credit_for_shared_tokens_only_in_f1() -> None:
    assert score_answer("scq", Extraction(("He opened the door",), "strict"), ["He closed the door"]) == (
        0.0,
        pytest.approx(2 / 3),
        None,
    )


def mcq(*named: str) -> AnswerScores:
    """Of walk home, eat and sleep, walk home and sleep are right; the gold order is not the prompt's."""
    return score_answer("mcq", Extraction(named, "strict"), ["sleep", "walk home"], ["walk home", "eat", "sleep"])


def test_mcq_matches_the_text_of_the_right_options_in_the_order_of_the_prompt() -> None:
    assert mcq("walk home", "sleep") == (1.0, 1.0, 1.0)
    joined = "Walk home; sleep."
    assert exact_match(joined, ["walk home sleep"]) == 1.0, "which is what the metric says of the joined texts"


def test_mcq_in_another_order_is_right_as_a_set_alone() -> None:
    assert mcq("sleep", "walk home") == (0.0, 1.0, 1.0)


def test_mcq_with_one_option_missing_is_no_match_but_earns_f1() -> None:
    # predicted: walk home (2 tokens); gold: walk home sleep (3); shared 2 → 2·2/5
    assert mcq("walk home") == (0.0, pytest.approx(0.8), 0.0)
    assert mcq("walk home", "sleep", "eat") == (0.0, pytest.approx(6 / 7), 0.0)


def test_options_that_normalise_to_nothing_stay_different() -> None:
    assert option_key("A") != option_key("The")
    assert score_answer("scq", Extraction(("A",), "strict"), ["The"])[0] == 0.0


def test_a_decimal_point_keeps_two_options_apart() -> None:
    assert score_answer("mcq", Extraction(("125",), "strict"), ["12.5"])[0] == 0.0
    assert score_answer("mcq", Extraction(("1,000 times",), "strict"), ["1000 times"])[0] == 1.0
