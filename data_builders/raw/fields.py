"""Checks of the fields of one raw row: each gives the value in its proper type or raises BadRowError.

Two characters that nobody sees are dealt with here, for all formats alike. U+FEFF (a byte order mark that got
inside a file when files were joined) is dropped from texts. A text of nothing but blanks, zero-width and control
characters counts as empty.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator
from typing import Any

from data_builders.raw.bad_rows import MISSING, BadRowError, shortened

_BYTE_ORDER_MARK = "\ufeff"
_INVISIBLE = ("Cf", "Cc")  # format characters, which have no width, and control characters


def clean(text: str) -> str:
    """The text without byte order marks and without blanks around it; "" where nothing visible is left."""
    kept = text.replace(_BYTE_ORDER_MARK, "").strip()
    visible = any(not char.isspace() and unicodedata.category(char) not in _INVISIBLE for char in kept)
    return kept if visible else ""


def text_field(row: dict[str, Any], name: str, within: str = "") -> str:
    """The text of a field, cleaned; `within` is the path of the row where it is part of another, `question.`.

    Raises:
        BadRowError: the field is missing, not text or empty.
    """
    if name not in row:
        keys = shortened(", ".join(map(str, row)) or "no field")
        raise BadRowError(f"{within}{name}: missing; expected text (the {'object' if within else 'row'} has {keys})")
    value = row[name]
    text = clean(value) if isinstance(value, str) else ""
    if not text:
        raise BadRowError.at(f"{within}{name}", value, "text that is not empty")
    return text


def text_list(name: str, value: object) -> list[str]:
    """The texts of a list, cleaned; empty ones stay, for a filter to judge.

    Raises:
        BadRowError: the value is not a list of texts.
    """
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise BadRowError.at(name, value, "a list of texts")
    return [clean(item) for item in value]


def object_field(row: dict[str, Any], name: str) -> dict[str, Any]:
    """The object that a field holds.

    Raises:
        BadRowError: it holds something else, or is missing.
    """
    value = row.get(name, MISSING)
    if not isinstance(value, dict):
        raise BadRowError.at(name, value, "an object")
    return value


def choice_field(name: str, value: object, allowed: Iterable[str]) -> str:
    """The value, if it is one of the allowed ones.

    Raises:
        BadRowError: it is not.
    """
    choices = list(allowed)
    if not isinstance(value, str) or value not in choices:
        raise BadRowError.at(name, value, f"one of {choices}")
    return value


def check_texts(row: dict[str, Any]) -> None:
    """Refuse what no output can hold or no model should see, in any text of the row, also one that nobody reads.

    Raises:
        BadRowError: a text, or the key of an object, has a NUL or a lone surrogate (half of a character).
    """
    for name, text in _texts(row):
        if "\0" in text:
            raise BadRowError.at(name, text, "text without NUL bytes")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            place = f"(there is one at character {error.start + 1:,})"
            raise BadRowError.at(name, text, f"text without lone surrogates {place}") from None


def _texts(row: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(path, text) of every text in the row and of every key; without recursion, since rows may nest deeply."""
    left: list[tuple[str, Any]] = [("", row)]
    while left:
        path, value = left.pop()
        if isinstance(value, str):
            yield path, value
        elif isinstance(value, dict):
            yield from ((f"a key of {path or 'the row'}", key) for key in value)
            left += [(f"{path}.{key}" if path else key, item) for key, item in reversed(value.items())]
        elif isinstance(value, list):
            left += [(f"{path}.{number}", item) for number, item in reversed(list(enumerate(value)))]
