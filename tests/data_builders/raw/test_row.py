"""What the fields of a raw row may hold, and what is said where they hold something else."""

from __future__ import annotations

import pytest

from data_builders.raw.row import BadRowError, Row, clean, shown


def test_a_byte_order_mark_inside_a_text_is_dropped() -> None:
    assert clean(" \ufeffAnn\ufeff ran. ") == "Ann ran."


@pytest.mark.parametrize("text", ["", " \u00a0", "\u200b", "\ufeff", "\u200b \u2060\u200d", "\x07"])
def test_a_text_that_nobody_can_see_is_empty(text: str) -> None:
    with pytest.raises(BadRowError, match=r"a: got '.*'; expected text that is not empty"):
        Row(1, {"a": text}).text("a")


def test_zero_width_characters_between_others_stay() -> None:
    assert Row(1, {"a": "\u0646\u200c\u0627"}).text("a") == "\u0646\u200c\u0627"


def test_a_missing_field_is_called_missing() -> None:
    with pytest.raises(BadRowError, match=r"^a: missing; expected text \(the row has b\)$"):
        Row(1, {"b": 1}).text("a")


def test_a_long_value_is_cut_and_counted() -> None:
    message = str(BadRowError.at("a", "x" * 5_000_000, "a number"))
    assert message == f"a: got '{'x' * 199}… (4,999,802 more characters); expected a number"
    assert shown("short") == "'short'"


def test_many_keys_are_cut_too() -> None:
    with pytest.raises(BadRowError) as error:
        Row(1, {f"key{number}": 1 for number in range(10_000)}).text("a")
    assert len(str(error.value)) < 400
