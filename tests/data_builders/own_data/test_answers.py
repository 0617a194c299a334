"""Answers of own rows in all the forms that a cell may have."""

from __future__ import annotations

import json
from typing import Any

import pytest

from data_builders.own_data.rows import last_turn
from data_builders.raw.row import BadRowError

ASKED, SAID = {"role": "user", "content": "How long?"}, {"role": "assistant", "content": "5 days."}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([ASKED, SAID], "5 days."),
        ([SAID], "5 days."),
        ([{"from": "human", "value": "How long?"}, {"from": "gpt", "value": "5 days."}], "5 days."),
        (json.dumps([ASKED, SAID]), "5 days."),  # as a cell of a CSV file
        ("5 days.", "5 days."),
        ("[about] 5 days.", "[about] 5 days."),
        (["5 days.", "five days"], ["5 days.", "five days"]),
        ("", ""),
        (None, None),
    ],
)
def test_the_answer_of_turns_is_the_last_one_and_other_values_stay(value: Any, expected: Any) -> None:
    assert last_turn("worse", value) == expected


@pytest.mark.parametrize("turns", [[ASKED], [SAID, ASKED], [{"role": "assistant", "content": {"image": "x"}}]])
def test_turns_that_do_not_end_in_an_answer_are_refused(turns: list[Any]) -> None:
    with pytest.raises(BadRowError, match="worse"):
        last_turn("worse", turns)
