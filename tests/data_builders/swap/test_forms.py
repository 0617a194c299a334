"""An answer can stand where another one stood if it begins alike and has its form; names keep their capital."""

from __future__ import annotations

import pytest

from data_builders.swap.candidates import Writing, same_form


@pytest.mark.parametrize(
    ("answer", "other", "same"),
    [
        ("a red barn", "the mill", True),
        ("a red barn", "in the mill", False),
        ("disease", "injuries", False),
        ("28 days", "20 days", True),
        ("28 days", "20 hours", False),
        ("Rosa Luz", "Ann Lee", True),
        ("Rosa Luz", "a red barn", False),
        ("to leave", "leaving", False),
        ("it was dark", "a lamp", False),
        ("one lamp", "one lamp of all the lamps in the old red barn", False),
    ],
)
def test_answers_of_one_form(answer: str, other: str, same: bool) -> None:
    assert same_form(answer, other) == same


@pytest.mark.parametrize(
    ("other", "answer", "written"),
    [
        ("Injury", "disease", "injury"),
        ("Lima", "disease", "Lima"),
        ("Omelia", "disease", "Omelia"),
        ("DNA", "disease", "DNA"),
        ("In the hills.", "on the coast", "in the hills"),
        ("Injury", "Disease", "Injury"),
    ],
)
def test_a_capital_stays_where_a_name_or_the_answer_has_it(other: str, answer: str, written: str) -> None:
    assert Writing(["We saw Omelia in spring."]).fitted(other, answer) == written
