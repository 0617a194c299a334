"""One row of a raw file, with checked access to its fields; an error names the field, its value and what was expected.

Two characters that nobody sees are dealt with here, for all formats alike. U+FEFF (a byte order mark that got
inside a file when files were joined) is dropped from texts. A text of nothing but blanks, zero-width and control
characters counts as empty.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

BYTE_ORDER_MARK = "\ufeff"
_INVISIBLE = ("Cf", "Cc")  # format characters, which have no width, and control characters
_SHOWN = 200

# Stands for the value of a field that a row lacks: `row.get(name)`.
MISSING: Any = object()


class BadRowError(Exception):
    """One raw row that breaks its dataset's format; `RawInput` catches it where it reads and where it parses rows."""

    @classmethod
    def at(cls, name: str, value: object, expected: str) -> BadRowError:
        """The row's field `name` holds `value` (MISSING: is not there) instead of what is expected."""
        found = "missing" if value is MISSING else f"got {shown(value)}"
        return cls(f"{name}: {found}; expected {expected}")


@dataclass(frozen=True)
class Row:
    """One row of a raw file, or an object inside it.

    Attributes:
        number: of its line, or of its item where the file is one JSON value.
        fields: value by name.
        path: of an object inside a row, `question.`; stands before the names in messages.
        key: of a member of a JSON object, its key.
    """

    number: int
    fields: dict[str, Any]
    path: str = ""
    key: str = ""

    @property
    def content(self) -> object:
        """What a side file records of it."""
        return (self.key, self.fields) if self.key else self.fields

    def get(self, name: str) -> Any:
        """The value of a field as it is, or MISSING."""
        return self.fields.get(name, MISSING)

    def error(self, name: str, expected: str, value: object = None) -> BadRowError:
        """The error that a field holds something else than what is expected; None stands for the field's value."""
        return BadRowError.at(f"{self.path}{name}", self.get(name) if value is None else value, expected)

    def text(self, name: str) -> str:
        """The text of a field, cleaned.

        Raises:
            BadRowError: the field is missing, not text or empty.
        """
        value = self.get(name)
        if value is MISSING:
            keys = shortened(", ".join(map(str, self.fields)) or "no field")
            has = f"the {'object' if self.path else 'row'} has {keys}"
            raise BadRowError(f"{self.path}{name}: missing; expected text ({has})")
        text = clean(value) if isinstance(value, str) else ""
        if not text:
            raise self.error(name, "text that is not empty")
        return text

    def texts(self, name: str) -> list[str]:
        """The texts of a list, cleaned; empty ones stay, for a filter to judge.

        Raises:
            BadRowError: the field is not a list of texts.
        """
        value = self.get(name)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error(name, "a list of texts")
        return [clean(item) for item in value]

    def choice(self, name: str, allowed: Iterable[str]) -> str:
        """The value of a field, if it is one of the allowed ones.

        Raises:
            BadRowError: it is not.
        """
        return one_of(f"{self.path}{name}", self.get(name), allowed)

    def integer(self, name: str, expected: str = "a whole number") -> int:
        """The whole number that a field holds; `True`, an int to Python, is none.

        Raises:
            BadRowError: it holds something else.
        """
        value = self.get(name)
        if type(value) is not int:
            raise self.error(name, expected)
        return value

    def object(self, name: str, expected: str = "an object") -> Row:
        """The object that a field holds.

        Raises:
            BadRowError: it holds something else, or is missing.
        """
        value = self.get(name)
        if not isinstance(value, dict):
            raise self.error(name, expected)
        return Row(self.number, value, f"{self.path}{name}.")

    def objects(self, name: str, expected: str = "a list of objects") -> list[Row]:
        """The objects of a list.

        Raises:
            BadRowError: the field is not a list of objects.
        """
        value = self.get(name)
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self.error(name, expected)
        return [Row(self.number, item, f"{self.path}{name}.{place}.") for place, item in enumerate(value)]


def one_of(name: str, value: object, allowed: Iterable[str]) -> str:
    """The value of a field, if it is one of the allowed ones; BadRowError if not."""
    choices = list(allowed)
    if not isinstance(value, str) or value not in choices:
        raise BadRowError.at(name, value, f"one of {choices}")
    return value


def clean(text: str) -> str:
    """The text without byte order marks and without blanks around it; "" where nothing visible is left."""
    kept = text.replace(BYTE_ORDER_MARK, "").strip()
    visible = any(not char.isspace() and unicodedata.category(char) not in _INVISIBLE for char in kept)
    return kept if visible else ""


def shown(value: object, length: int = _SHOWN) -> str:
    """A value as a message shows it: its repr, cut to `length` characters."""
    try:
        return shortened(repr(value), length)
    except RecursionError:
        return f"a {type(value).__name__} that nests too deeply to be shown"


def shortened(text: str, length: int = _SHOWN) -> str:
    """The text, or its first `length` characters and how many were left out."""
    left_out = len(text) - length
    return text if left_out <= 0 else f"{text[:length]}… ({left_out:,} more characters)"


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
