"""Exact match and F1 against hand-worked values."""

from __future__ import annotations

import pytest

from eval.score.extract import Extraction
from eval.score.metrics import AnswerScores, exact_match, score_answer, token_f1
from eval.score.normalise import normalise, option_key


def test_normalising_drops_case_punctuation_articles_and_extra_space() -> None:
    assert normalise("  The  U.S. Army's\tAN answer, a  test! ") == "us armys answer test"
    assert normalise("Theatre and another") == "theatre and another"  # articles are whole words


def test_exact_match_ignores_what_normalising_drops() -> None:
    assert exact_match("The Red House.", ["a house", "red house"]) == 1.0
    assert exact_match("red houses", ["red house"]) == 0.0


@pytest.mark.parametrize(
    ("prediction", "golds", "expected"),
    [
        ("the cat sat", ["cat sat down"], 0.8),  # P 2/2, R 2/3
        ("big big dog", ["big dog dog"], 2 / 3),  # bag: big 1 + dog 1 of 3 and 3
        ("x y", ["a b c", "x"], 2 / 3),  # best of the golds: P 1/2, R 1/1
        ("cat", ["dog"], 0.0),
        ("", [""], 1.0),
        ("the", [""], 1.0),  # an article normalises to nothing
        ("", ["cat"], 0.0),
        ("cat", ["the"], 0.0),
    ],
)
def test_token_f1_equals_the_hand_worked_value(prediction: str, golds: list[str], expected: float) -> None:
    assert token_f1(prediction, golds) == pytest.approx(expected)


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
