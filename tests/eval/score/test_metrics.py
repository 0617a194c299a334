"""Exact match, F1 and ESTER's scores against hand-worked values."""

from __future__ import annotations

import pytest

from eval.score.metrics import EventScores, normalise, score_events, token_f1


def test_normalising_drops_case_punctuation_articles_and_extra_space() -> None:
    assert normalise("  The  U.S. Army's\tAN answer, a  test! ") == "us armys answer test"
    assert normalise("Theatre and another") == "theatre and another"  # articles are whole words


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


GOLD = ["Trees fell", "a roof flew off"]
TRIGGERS = ["fell", "flew"]


@pytest.mark.parametrize(
    ("answer", "token_f1", "event_f1", "hit", "exact"),
    [
        ("a roof flew off; Trees fell", 1, 1, 1, 1),  # the order does not count
        ("Trees fell;a roof flew off", 1, 1, 1, 1),  # nor do blanks at the separator
        ("Trees fell", 2 * (2 / 6) / (1 + 2 / 6), 2 * 0.5 / 1.5, 1, 0),  # precision 1, recall 2/6 and 1/2
        ("it rained; Trees fell", 2 * (2 / 6) * (2 / 4) / (2 / 6 + 2 / 4), 0.5, 0, 0),  # hit counts the first alone
        ("Trees fell and a roof flew off", 2 * (6 / 7) / (6 / 7 + 1), 1, 1, 0),  # both triggers in one event
        ("trees fell!", 2 * (1 / 6) * (1 / 2) / (1 / 6 + 1 / 2), 2 * 0.5 / 1.5, 1, 0),  # letter case counts
        ("It hailed", 0, 0, 0, 0),
        ("", 0, 0, 0, 0),
    ],
)
def test_all_events_are_asked_for(answer: str, token_f1: float, event_f1: float, hit: float, exact: float) -> None:
    scores = score_events(answer, GOLD, TRIGGERS)
    assert scores.model_dump() == pytest.approx(
        {"token_f1": token_f1, "event_f1": event_f1, "hit_at_1": hit, "exact_match": exact}
    )


def test_punctuation_that_stands_alone_is_an_empty_token() -> None:
    # "a - b" gives a, "" and b: 2 of 3 tokens are right, and all of the gold ones are there
    assert score_events("a - b", ["a b"], []).token_f1 == pytest.approx(0.8)


def test_without_triggers_no_event_is_found() -> None:
    assert score_events("a", ["a"], []) == EventScores(token_f1=1, event_f1=0, hit_at_1=0, exact_match=1)
