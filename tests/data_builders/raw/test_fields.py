"""What the checks of a raw row's fields accept, and what they say."""

from __future__ import annotations

import pytest

from data_builders.raw.bad_rows import MISSING, BadRowError, shown
from data_builders.raw.fields import choice_field, clean, object_field, text_field, text_list


def test_a_byte_order_mark_inside_a_text_is_dropped() -> None:
    assert clean(" \ufeffAnn\ufeff ran. ") == "Ann ran."
    assert text_list("a", ["\ufeffx", "\u200b"]) == ["x", ""]


@pytest.mark.parametrize("text", ["", " \u00a0", "\u200b", "\ufeff", "\u200b \u2060\u200d", "\x07"])
def test_a_text_that_nobody_can_see_is_empty(text: str) -> None:
    with pytest.raises(BadRowError, match=r"a: got '.*'; expected text that is not empty"):
        text_field({"a": text}, "a")


def test_zero_width_characters_between_others_stay() -> None:
    assert text_field({"a": "\u0646\u200c\u0627"}, "a") == "\u0646\u200c\u0627"


def test_a_missing_field_is_called_missing() -> None:
    with pytest.raises(BadRowError, match=r"^a: missing; expected a list of texts$"):
        text_list("a", {}.get("a", MISSING))
    with pytest.raises(BadRowError, match=r"^a: missing; expected one of \['x'\]$"):
        choice_field("a", {}.get("a", MISSING), ["x"])
    with pytest.raises(BadRowError, match=r"^a: missing; expected an object$"):
        object_field({}, "a")
    with pytest.raises(BadRowError, match=r"^question\.stem: missing; expected text \(the object has b\)$"):
        text_field({"b": 1}, "stem", "question.")


def test_a_long_value_is_cut_and_counted() -> None:
    message = str(BadRowError.at("a", "x" * 5_000_000, "a number"))
    assert message == f"a: got '{'x' * 199}… (4,999,802 more characters); expected a number"
    assert shown("short") == "'short'"


def test_many_keys_are_cut_too() -> None:
    with pytest.raises(BadRowError) as error:
        text_field({f"key{number}": 1 for number in range(10_000)}, "a")
    assert len(str(error.value)) < 400
