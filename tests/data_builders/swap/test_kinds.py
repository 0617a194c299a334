"""Answers of one kind may replace each other."""

from __future__ import annotations

import pytest

from data_builders.swap.entities import kind_of

SEEN = "he lives in the netherlands . she plays for ajax in peru , and rosa luz wrote that the world bank paid ."
Row = tuple[str, str]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("1994", "When was it?"), ("2003", "In which year did it close?")),
        (("May 1994", "When was it?"), ("October 2003", "When did it close?")),
        (("March 4, 1832", "When?"), ("June 27, 2001", "When?")),
        (("25%", "How much?"), ("40%", "What share?")),
        (("three", "How many?"), ("ten", "How many?")),
        (("garage", "Where is the key now?"), ("barn", "Where is the coin now?")),
        (("Ajax", "Which club did Ann play for in 1994?"), ("Real Madrid", "Which club was Bob a member of?")),
        (("Ann Lee", "Who led the team?"), ("Rosa Luz", "If it had rained, who would have led the club?")),
        (("the cap", "What does Box 1 contain?"), ("the bell", "What does Box 13 contain?")),
        (("Ann Lee", "The mayor was whom?"), ("Rosa Luz", "Who was it?")),
    ],
)
def test_answers_of_one_kind(one: Row, other: Row) -> None:
    assert kind_of(*one, SEEN) == kind_of(*other, SEEN) is not None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("1994", "When?"), ("May 1994", "When?")),
        (("May 1994", "When?"), ("4 May", "When?")),
        (("5", "How many?"), ("1,500", "How many?")),
        (("3 km", "How far?"), ("3 kg", "How far?")),
        (("Ajax", "Which club did Ann play for?"), ("Ajax", "Which country did Ann play for?")),
        (("Ann Lee", "Who led it?"), ("Ajax", "Who led it?")),
        (("Ann Lee", "Who led it?"), ("World Bank", "Who led it?")),
        (("Costa Rica", "Who won?"), ("the Netherlands", "Who won?")),
        (("a cap", "Where?"), ("the cap", "Where?")),
        (("the cap", "Where?"), ("the cap and the bell", "Where?")),
        (("dogs", "Where?"), ("dog", "Where?")),
        (("higher costs", "What caused the loss?"), ("a fire", "What caused the panic?")),
        (("Paris", "Where?"), ("Paris, Texas", "Where?")),
    ],
)
def test_answers_of_different_kinds(one: Row, other: Row) -> None:
    assert kind_of(*one, SEEN) != kind_of(*other, SEEN)


def test_other_answers_than_entities_have_no_kind() -> None:
    for answer in ("nothing", "Yes", "it", "?", "the", "because a fire broke out in the old mill", "the cap,"):
        assert kind_of(answer, "What happened?", SEEN) is None, answer
