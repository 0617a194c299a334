"""What the fields of a raw row may hold, and the messages about other values."""

from __future__ import annotations

import pytest

from data_builders.raw.row import BadRowError, Row, clean, shown

INVISIBLE = ("", " \u00a0", "\u200b", "\ufeff", "\u200b \u2060\u200d", "\x07")


def test_byte_order_marks_are_dropped_and_zero_width_characters_between_others_stay() -> None:
    assert clean(" \ufeffAnn\ufeff ran. ") == "Ann ran."
    assert Row(1, {"a": "\u0646\u200c\u0627"}).text("a") == "\u0646\u200c\u0627"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        *(({"a": text}, r"^a: got '.*'; expected text that is not empty$") for text in INVISIBLE),
        ({"b": 1}, r"^a: missing; expected text \(the row has b\)$"),
        ({f"key{number}": 1 for number in range(10_000)}, r"^a: missing; expected text \(the row has .{,250}\)$"),
    ],
)
def test_a_text_that_is_missing_or_invisible_is_an_error(fields: dict[str, object], message: str) -> None:
    with pytest.raises(BadRowError, match=message):
        Row(1, fields).text("a")


def test_a_long_value_is_cut_and_counted() -> None:
    message = str(BadRowError.at("a", "x" * 5_000_000, "a number"))
    assert message == f"a: got '{'x' * 199}… (4,999,802 more characters); expected a number"
    assert shown("short") == "'short'"
