"""Exact match and F1 against hand-worked values."""

from __future__ import annotations

import pytest

from eval.score.metrics import exact_match, normalise, token_f1


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
