"""Replies of models: schemata, states, sentences, and the first number."""

from __future__ import annotations

import pytest

from eval.systems.openpi2.parse import (
    first_integer,
    parse_change,
    parse_schema,
    parse_sentences,
    parse_states,
)


@pytest.mark.parametrize(
    ("reply", "schema"),
    [
        ("eggs (shape), flour (color, location)", {"eggs": ["shape"], "flour": ["color", "location"]}),
        ("eggs (shape), flour (color,location), ", {"eggs": ["shape"], "flour": ["color", "location"]}),
        ("eggs (shape).", {"eggs": ["shape"]}),
        ("eggs (shape), eggs (size)", {"eggs": ["shape", "size"]}),
        ("eggs, flour", {}),
        ("eggs ()", {}),
        ("Nothing changes.", {}),
        ("", {}),
        ("pan (heat), and the lid", {"pan": ["heat"]}),
    ],
)
def test_a_schema_is_split_at_closing_brackets(reply: str, schema: dict[str, list[str]]) -> None:
    assert parse_schema(reply) == schema


@pytest.mark.parametrize(
    ("reply", "states"),
    [
        ("cool before and hot after", ("cool", "hot")),
        (" cool before and hot afterwards. ", ("cool", "hot")),
        ("cool before and hot after it", ("cool", "hot")),
        ("Before: cool\nAfter: hot", ("cool", "hot")),
        ("Sure!\nBefore: in the pan\nAfter: on the plate\n", ("in the pan", "on the plate")),
        ("It gets hot.", ("Error", "Error")),
        ("", ("Error", "Error")),
    ],
)
def test_states_are_read_from_both_forms(reply: str, states: tuple[str, str]) -> None:
    assert parse_states(reply) == states


def test_sentences_stand_one_a_line() -> None:
    reply = "- heat of pan was low before and high after\n  - size of egg was big before and small after"
    assert parse_sentences(reply) == [
        "heat of pan was low before and high after",
        "size of egg was big before and small after",
    ]
    assert parse_sentences("") == [""], "as officially, where it is part of every gold sentence"


@pytest.mark.parametrize(
    ("sentence", "change"),
    [
        ("heat of pan was low before and high after", ("pan", "heat", "low", "high")),
        ("color of the eggs were white before and brown afterwards.", ("the eggs", "color", "white", "brown")),
        ("the pan gets hot", None),
        ("heat of pan was low before", None),
    ],
)
def test_a_change_is_read_from_its_sentence(sentence: str, change: tuple[str, ...] | None) -> None:
    assert parse_change(sentence) == change


@pytest.mark.parametrize(("reply", "number"), [("4 - it matters", 4), ("Pan: 35", 35), ("much", 1), ("", 1)])
def test_salience_is_the_first_integer_or_one(reply: str, number: int) -> None:
    assert first_integer(reply) == number
