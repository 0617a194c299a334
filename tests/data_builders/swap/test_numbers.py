"""Other numbers and dates keep the form of the answer."""

from __future__ import annotations

import random
import re

import pytest

from data_builders.swap.entities import number_forms, other_numbers


@pytest.mark.parametrize(
    ("answer", "form"),
    [
        ("August 15, 1971", r"August (?!15)(?:[1-9]|1\d|2[0-8]), 1971"),
        ("May 1994", r"(?!May)[A-Z][a-z]+ 1994"),
        ("mid 1994", r"mid (?!1994)(?:198[4-9]|199\d|200[0-4])"),
        ("$41 trillion", r"\$(?!41)[2-8]\d trillion"),
        ("3,500 men", r"(?!3,500)[1-7],\d00 men"),
        ("90%", r"(?!90)[4-9]0%"),
        ("at least four passengers", r"at least (?!four)[a-z]+ passengers"),
        ("18th century", r"(?!18th)\d\d(?:st|nd|rd|th) century"),
        ("Monday", r"(?!Monday)[A-Z][a-z]+day"),
        ("Lima", None),
        ("1 mile", None),
        ("42-500", None),
        ("VT-4 of 4 men", None),
    ],
)
def test_other_numbers_keep_the_form_of_the_answer(answer: str, form: str | None) -> None:
    found = [text for seed in range(10) for text in other_numbers(answer, random.Random(seed))]
    assert bool(found) == (form is not None)
    for text in found:
        assert re.fullmatch(str(form), text), text


def test_a_small_number_is_known_in_all_its_forms() -> None:
    assert number_forms("fifth") == number_forms("5th") | {"fifth"} == {"5", "5th", "five", "fifth"}
    assert number_forms("42") == {"42", "42nd"}
    assert number_forms("Lima") == set()
