"""Mentions are whole words in any case; what could still speak of the entity is found."""

from __future__ import annotations

import pytest

from data_builders.swap.mentions import (
    exchanged,
    is_part_of_a_name,
    is_replaceable,
    leaves_traces,
    mentions,
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
    assert mentions(entity, text) == found
    assert mentions(entity, without(entity, text)) == []


@pytest.mark.parametrize(
    ("entity", "rest", "traces"),
    [
        ("Barack Obama", "Obama left.", True),
        ("Barack Obama", "Ann left.", False),
        ("Will Smith", "He will go.", False),
        ("the red barn", "The Barn burnt.", True),
        ("barn", "two barns", True),
        ("barn", "a bar", False),
        ("Israel", "the Israeli side", True),
        ("British Broadcasting Corporation", "the BBC said", True),
        ("University of Oxford", "of the of", False),
        ("J. Ray", "J. left", False),
        ("12 km", "In 12 days", True),
    ],
)
def test_traces_of_an_entity(entity: str, rest: str, traces: bool) -> None:
    assert leaves_traces(entity, rest) == traces


@pytest.mark.parametrize(
    ("entity", "text", "part"),
    [
        ("Vicar General", "the Deputy Vicar General left", True),
        ("London", "in London Bridge", True),
        ("London", "In London he left. The London he knew", False),
        ("London", "the London-based team", False),
        ("barn", "Barn Owl", False),
    ],
)
def test_part_of_a_longer_name(entity: str, text: str, part: bool) -> None:
    assert is_part_of_a_name(entity, text) == part


def test_two_entities_change_places_in_one_step_and_keep_capitals() -> None:
    text = "The barn is red. Barn and garage: GARAGE, barns."
    assert exchanged(text, {"barn": "garage", "garage": "barn"}) == (
        "The garage is red. Garage and barn: BARN, barns."
    )


def test_the_longer_of_two_entities_is_replaced_first() -> None:
    assert exchanged("New York and York", {"York": "Leeds", "New York": "Bonn"}) == "Bonn and Leeds"


def test_another_way_of_writing_is_not_replaceable() -> None:
    assert is_replaceable("Tiger Woods", "TIGER WOODS and Tiger Woods")
    assert not is_replaceable("Tiger Woods", "tiger woods are green")
    assert not is_replaceable("Playground", "a playground")


def test_articles_that_do_not_fit() -> None:
    assert needs_other_article("barn", "attic", "in a barn")
    assert not needs_other_article("barn", "attic", "in the barn")
    assert not needs_other_article("barn", "garage", "in a barn")
