"""JSON values read one after the other and with their lines, from text that may break off anywhere.

Python's reader lets pass what is no JSON or is ambiguous: NaN, a key given twice (the last one wins). Such a value
is read to its end here, with its problem, so that one bad item of an array need not cost the array.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from d2e_sft.util.files import object_without_twins
from data_builders.raw.bad_rows import shortened

# Python refuses to convert longer numbers; no dataset has one.
_MOST_DIGITS = 4_300


class BrokenJsonError(Exception):
    """Text that is not the expected JSON; the message begins with its line."""


def decode(text: str, at: int = 0) -> tuple[Any, int, str]:
    """(value, position after it, what is wrong with it or "") of the JSON value that begins at `at`.

    Raises:
        json.JSONDecodeError: there is no complete value.
        RecursionError: it nests too deeply.
    """
    problems: list[str] = []

    def as_object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        try:
            return object_without_twins(pairs)
        except ValueError as error:
            problems.append(str(error))
            return dict(pairs)

    def constant(name: str) -> None:
        problems.append(f"{name} is no JSON value")

    def integer(digits: str) -> int | None:
        if len(digits) <= _MOST_DIGITS:
            return int(digits)
        problems.append(f"a number has {len(digits):,} digits; expected at most {_MOST_DIGITS:,}")
        return None

    decoder = json.JSONDecoder(object_pairs_hook=as_object, parse_constant=constant, parse_int=integer)
    value, end = decoder.raw_decode(text, at)
    return value, end, "; ".join(problems[:1])


def decode_all(text: str) -> tuple[Any, str]:
    """(value, what is wrong with it or "") of a text that is one JSON value.

    Raises:
        json.JSONDecodeError, RecursionError: as in `decode`; also where something follows the value.
    """
    value, end, problem = decode(text, _skip_blanks(text, 0))
    if _skip_blanks(text, end) != len(text):
        raise json.JSONDecodeError("Extra data", text, _skip_blanks(text, end))
    return value, problem


def array_start(text: str, key: str = "") -> int:
    """The position after the "[" of the array that the text is, or that the object in the text holds under `key`.

    Raises:
        BrokenJsonError: the text is something else.
    """
    at = _skip_blanks(text, 0)
    opening, what = ("{", f"a JSON object '{{' with the key {key!r}") if key else ("[", "a JSON array '['")
    if text[at : at + 1] != opening:
        raise BrokenJsonError(f"line 1: got {text[at : at + 60]!r}; expected {what}")
    return _value_start(text, at + 1, key) if key else at + 1


def _value_start(text: str, at: int, key: str) -> int:
    found = []
    try:
        at = _skip_blanks(text, at)
        while text[at : at + 1] != "}":
            name, at, _ = decode(text, at)
            at = _skip_blanks(text, _expect(text, _skip_blanks(text, at), ":"))
            if name == key:
                return _expect(text, at, "[")
            found.append(str(name))
            _, at, _ = decode(text, at)
            at = _skip_blanks(text, at)
            if text[at : at + 1] != "}":
                at = _skip_blanks(text, _expect(text, at, ","))
    except json.JSONDecodeError as error:
        raise _broken("object", error) from None
    except RecursionError as error:
        raise _too_deep("object", text, at, error) from None
    keys = shortened(", ".join(found) or "no key")
    raise BrokenJsonError(f"line 1: the JSON object has {keys}; expected the key {key!r}")


def array_items(text: str, at: int) -> Iterator[tuple[int, Any, str]]:
    """(line of its start, value, what is wrong with it or "") for each item of the array whose "[" is before `at`.

    Raises:
        BrokenJsonError: the array ends or breaks.
    """
    line, counted = 1, 0
    at = _skip_blanks(text, at)
    while text[at : at + 1] != "]":
        line, counted = line + text.count("\n", counted, at), at
        try:
            item, at, problem = decode(text, at)
            at = _skip_blanks(text, at)
            if text[at : at + 1] != "]":
                at = _skip_blanks(text, _expect(text, at, ","))
        except json.JSONDecodeError as error:
            raise _broken("array", error) from None
        except RecursionError as error:
            raise _too_deep("array", text, at, error) from None
        yield line, item, problem


def _expect(text: str, at: int, mark: str) -> int:
    if text[at : at + 1] != mark:
        raise json.JSONDecodeError(f"Expecting {mark!r}", text, at)
    return at + 1


def _broken(what: str, error: json.JSONDecodeError) -> BrokenJsonError:
    # Many files have one line only; there the column says more.
    return BrokenJsonError(
        f"line {error.lineno}: the JSON {what} ends or breaks here (column {error.colno:,}: {error.msg})"
    )


def _too_deep(what: str, text: str, at: int, error: RecursionError) -> BrokenJsonError:
    line = text.count("\n", 0, at) + 1
    return BrokenJsonError(f"line {line}: the JSON {what} nests too deeply ({error})")


def _skip_blanks(text: str, at: int) -> int:
    while text[at : at + 1] in (" ", "\n", "\r", "\t"):
        at += 1
    return at
