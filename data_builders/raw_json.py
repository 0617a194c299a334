"""The items of a JSON array, one after the other and with their lines, from text that may break off anywhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any


class BrokenJsonError(Exception):
    """Text that is not the expected JSON; the message begins with its line."""


def array_start(text: str, key: str = "") -> int:
    """The position after the "[" of the array that the text is, or that the object in the text holds under `key`.

    Raises:
        BrokenJsonError: the text is something else.
    """
    at = _skip_blanks(text, 0)
    opening, what = ("{", f"a JSON object '{{' with the key {key!r}") if key else ("[", "a JSON array '['")
    if text[at : at + 1] != opening:
        raise BrokenJsonError(f"line 1: got {text[at : at + 20]!r}; expected {what}")
    return _value_start(text, at + 1, key) if key else at + 1


def _value_start(text: str, at: int, key: str) -> int:
    decoder = json.JSONDecoder()
    found = []
    try:
        at = _skip_blanks(text, at)
        while text[at : at + 1] != "}":
            name, at = decoder.raw_decode(text, at)
            at = _skip_blanks(text, _expect(text, _skip_blanks(text, at), ":"))
            if name == key:
                return _expect(text, at, "[")
            found.append(str(name))
            _, at = decoder.raw_decode(text, at)
            at = _skip_blanks(text, at)
            if text[at : at + 1] != "}":
                at = _skip_blanks(text, _expect(text, at, ","))
    except json.JSONDecodeError as error:
        raise _broken("object", error) from None
    raise BrokenJsonError(f"line 1: the JSON object has {', '.join(found) or 'no key'}; expected the key {key!r}")


def array_items(text: str, at: int) -> Iterator[tuple[int, Any]]:
    """(line of its start, value) for each item of the array whose "[" stands before `at`.

    Raises:
        BrokenJsonError: the array ends or breaks.
    """
    decoder = json.JSONDecoder()
    line, counted = 1, 0
    at = _skip_blanks(text, at)
    while text[at : at + 1] != "]":
        line, counted = line + text.count("\n", counted, at), at
        try:
            item, at = decoder.raw_decode(text, at)
            at = _skip_blanks(text, at)
            if text[at : at + 1] != "]":
                at = _skip_blanks(text, _expect(text, at, ","))
        except json.JSONDecodeError as error:
            raise _broken("array", error) from None
        except RecursionError as error:
            raise BrokenJsonError(f"line {line}: the JSON array nests too deeply ({error})") from None
        yield line, item


def _expect(text: str, at: int, mark: str) -> int:
    if text[at : at + 1] != mark:
        raise json.JSONDecodeError(f"Expecting {mark!r}", text, at)
    return at + 1


def _broken(what: str, error: json.JSONDecodeError) -> BrokenJsonError:
    # Many files have one line only; there the column says more.
    return BrokenJsonError(
        f"line {error.lineno}: the JSON {what} ends or breaks here (column {error.colno:,}: {error.msg})"
    )


def _skip_blanks(text: str, at: int) -> int:
    while text[at : at + 1] in (" ", "\n", "\r", "\t"):
        at += 1
    return at
