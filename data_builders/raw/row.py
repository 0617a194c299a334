"""One row of a raw file with checked access to its fields; errors name the field, its value and what was expected.

For all formats alike, byte order marks (U+FEFF, left where files were joined) are dropped from texts, and a text of
blanks, zero-width and control characters counts as empty.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from d2e_sft.data.cells import JsonFloat
from d2e_sft.data.sample import Relation, Subset
from d2e_sft.util.errors import shortened as shown
from d2e_sft.util.files import object_with_unique_keys

BYTE_ORDER_MARK = "\ufeff"
_INVISIBLE = ("Cf", "Cc")  # Unicode categories: format characters, which have no width, and control characters
_MOST_DIGITS = 4_300  # Python refuses to convert longer numbers; no dataset has one

# The value of a field that a row lacks: `row.get(name)`.
MISSING: Any = object()


class BadRowError(Exception):
    """A raw row that breaks its dataset's format; `RawInput` reports it with file and line."""

    @classmethod
    def at(cls, name: str, value: object, expected: str) -> BadRowError:
        """Return the error of field `name`, which holds `value` (or MISSING) instead of what is expected."""
        problem = "missing" if value is MISSING else f"got {shown(value)}"
        return cls(f"{name}: {problem}; expected {expected}")


@dataclass(frozen=True)
class Flaw:
    """Stands for a JSON `value` that must not be used because of a `problem`, so that only its row is rejected."""

    problem: str
    value: object = None

    def __str__(self) -> str:
        return str(self.value or self.problem)


@dataclass(frozen=True)
class Row:
    """A row of a raw file: number of its line or item, values by name, and its key as a member of a JSON object."""

    number: int
    fields: dict[str, Any]
    key: str = ""

    def get(self, name: str) -> Any:
        """Return the value of a field, or MISSING."""
        return self.fields.get(name, MISSING)

    def text(self, name: str) -> str:
        """Return a text, cleaned; BadRowError if it is missing, not text or empty."""
        value = self.get(name)
        if value is MISSING:
            keys = cut(", ".join(map(str, self.fields)) or "no field")
            raise BadRowError(f"{name}: missing; expected text (the row has {keys})")
        text = clean(value) if isinstance(value, str) else ""
        if not text:
            raise BadRowError.at(name, value, "text that is not empty")
        return text


@dataclass(frozen=True, kw_only=True)
class Draft:
    """The parts of a sample as a row gives them, before filters and the checks of `EventSample`.

    Attributes:
        relation, context: None if the row has no usable one, so that a filter leaves it out.
        id: Unique within dataset and split; empty for the number.
        record_number: Whether to record the number in meta.
        refined_context: The part of the context that the answer needs, if the row says so.
        extra: Further values for filters, which the sample does not have.
    """

    number: int
    relation: Relation | None
    context: str | None
    question: str
    answers: Collection[str]
    options: Collection[str] = ()
    id: str = ""
    meta: Mapping[str, object] = field(default_factory=dict)
    record_number: bool = True
    refined_context: str | None = None
    subset: Subset | None = None
    habit: Collection[str] = ()
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)


def clean(text: str) -> str:
    """Return the text without byte order marks and surrounding blanks; "" if nothing visible is left."""
    kept = text.replace(BYTE_ORDER_MARK, "").strip()
    visible = any(not char.isspace() and unicodedata.category(char) not in _INVISIBLE for char in kept)
    return kept if visible else ""


def cut(text: str, length: int = 200) -> str:
    """Return the text, or its first `length` characters and how many were left out."""
    left_out = len(text) - length
    return text if left_out <= 0 else f"{text[:length]}… ({left_out:,} more characters)"


def check_values(row: dict[str, Any]) -> None:
    """Reject a row with a flaw, a NUL or a lone surrogate (half a character), in keys and unused fields too."""
    left: list[tuple[str, Any]] = [("", row)]
    while left:  # without recursion, since rows may nest deeply
        path, value = left.pop()
        if isinstance(value, Flaw):
            raise BadRowError(f"{path}: {value.problem}" if path else value.problem)
        if isinstance(value, dict):
            left += [(f"{path}.{key}" if path else key, item) for key, item in reversed(value.items())]
            left += [(f"a key of {path or 'the row'}", key) for key in reversed(value)]
        elif isinstance(value, list):
            left += [(f"{path}.{number}", item) for number, item in reversed(list(enumerate(value)))]
        elif isinstance(value, str):
            if "\0" in value:
                raise BadRowError.at(path, value, "text without NUL bytes")
            try:
                value.encode("utf-8")
            except UnicodeEncodeError as error:
                place = f"(there is one at character {error.start + 1:,})"
                raise BadRowError.at(path, value, f"text without lone surrogates {place}") from None


def decode_json(text: str) -> Any:
    """Return the JSON value that the text is; JSONDecodeError, or RecursionError if it nests too deeply.

    Python's decoder accepts NaN, and the last of two equal keys. A `Flaw` takes the place of such a value, so that one
    bad item of an array does not cost the array.
    """
    return json.loads(
        text,
        object_pairs_hook=_as_object,
        parse_float=JsonFloat,
        parse_constant=lambda name: Flaw(f"{name} is not a JSON value"),
        parse_int=lambda digits: int(digits) if len(digits) <= _MOST_DIGITS else _too_long(digits),
    )


def _too_long(digits: str) -> Flaw:
    return Flaw(f"a number has {len(digits):,} digits; expected at most {_MOST_DIGITS:,}")


def _as_object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any] | Flaw:
    try:
        return object_with_unique_keys(pairs)
    except ValueError as error:
        return Flaw(str(error), dict(pairs))
