"""Mentions are whole words in any case; what could still speak of the entity is found."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from data_builders.text.mentions import (
    exchanged,
    find,
    is_part_of_a_name,
    is_replaceable,
    leaves_traces,
    needs_other_article,
    without,
)


@pytest.mark.parametrize(
    ("entity", "text", "found"),
    [
        ("barn", "The barn, a barnyard and the Barn's door.", ["barn", "Barn"]),
        ("New York", "New  York-based, New\nYork.", ["New  York", "New\nYork"]),
        ("5", "5, 15, 1,500, 5.5, 2.5 and (5)", ["5", "5"]),
        ("1994", "In 1994, 1994-95 or 21994.", ["1994"]),
        ("$10 million", "$10 million, not $10 millions", ["$10 million"]),
        ("A.C . Pisa", "He joined A.C . Pisa .", ["A.C . Pisa"]),
    ],
)
def test_mentions_are_whole_words(entity: str, text: str, found: list[str]) -> None:
    assert find(entity, text) == found
    assert find(entity, without(entity, text)) == []


@pytest.mark.parametrize(
    ("holds", "entity", "text", "expected"),
    [
        (leaves_traces, "Barack Obama", "Obama left.", True),
        (leaves_traces, "Barack Obama", "Ann left.", False),
        (leaves_traces, "Will Smith", "He will go.", False),
        (leaves_traces, "the red barn", "The Barn burnt.", True),
        (leaves_traces, "barn", "two barns", True),
        (leaves_traces, "barn", "a bar", False),
        (leaves_traces, "Israel", "the Israeli side", True),
        (leaves_traces, "British Broadcasting Corporation", "the BBC said", True),
        (leaves_traces, "University of Oxford", "of the of", False),
        (leaves_traces, "J. Ray", "J. left", False),
        (leaves_traces, "12 km", "In 12 days", True),
        (is_part_of_a_name, "Vicar General", "the Deputy Vicar General left", True),
        (is_part_of_a_name, "London", "in London Bridge", True),
        (is_part_of_a_name, "London", "In London he left. The London he knew", False),
        (is_part_of_a_name, "London", "the London-based team", False),
        (is_part_of_a_name, "barn", "Barn Owl", False),
        (is_replaceable, "Tiger Woods", "TIGER WOODS and Tiger Woods", True),
        (is_replaceable, "Tiger Woods", "tiger woods are green", False),
        (is_replaceable, "Playground", "a playground", False),
    ],
)
def test_how_a_text_speaks_of_an_entity(
    holds: Callable[[str, str], bool], entity: str, text: str, expected: bool
) -> None:
    assert holds(entity, text) == expected


@pytest.mark.parametrize(
    ("text", "pairs", "result"),
    [
        (
            "The barn is red. Barn and garage: GARAGE, barns.",
            {"barn": "garage", "garage": "barn"},
            "The garage is red. Garage and barn: BARN, barns.",
        ),
        ("New York and York", {"York": "Leeds", "New York": "Bonn"}, "Bonn and Leeds"),
    ],
)
def test_entities_change_places_in_one_step_the_longest_first(text: str, pairs: dict[str, str], result: str) -> None:
    assert exchanged(text, pairs) == result


@pytest.mark.parametrize(
    ("other", "text", "needed"),
    [("attic", "in a barn", True), ("attic", "in the barn", False), ("garage", "in a barn", False)],
)
def test_articles_that_do_not_fit(other: str, text: str, needed: bool) -> None:
    assert needs_other_article("barn", other, text) == needed
