"""Official JSON files of the systems: whatever is wrong in one is a message with file, place and value."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from d2e_sft.util.errors import UserError
from d2e_sft.util.files import object_with_unique_keys

_DAMAGED = "the file is damaged or another one: download it again, or write it anew"
_SHOWN = 120
_NODE_SHOWN = 80


def read_json(path: Path) -> Any:
    """The content of a JSON file.

    Raises:
        UserError: it cannot be read, is not UTF-8, is no JSON, or gives a key twice.
    """
    return _decoded(read_text(path), str(path))


def read_json_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place, object) for each line of a JSON-lines file that is not blank.

    Raises:
        UserError: as `read_json`, also where a line holds no object.
    """
    # Only "\n" ends a line: texts may hold other characters that count as line ends elsewhere.
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        place = f"{path}, line {number}"
        if line.strip():
            yield place, expect_object(_decoded(line, place), place)


def json_lines(rows: Iterable[Any]) -> str:
    """The text of a JSON-lines file."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def expect_object(value: Any, place: str) -> dict[str, Any]:
    """The value, if it is a JSON object.

    Raises:
        UserError: it is something else.
    """
    if not isinstance(value, dict):
        raise UserError(f"{place}: got {shown(value)}; expected a JSON object", remedy=_DAMAGED)
    return value


def expect_list(value: Any, place: str) -> list[Any]:
    """The value, if it is a JSON array.

    Raises:
        UserError: it is something else.
    """
    if not isinstance(value, list):
        raise UserError(f"{place}: got {shown(value)}; expected a JSON array", remedy=_DAMAGED)
    return value


def expect_text(row: dict[str, Any], name: str, place: str, *, empty: bool = False) -> str:
    """The text of a field.

    Args:
        empty: whether a text of nothing but blanks will do.

    Raises:
        UserError: the field is missing, no text, or empty.
    """
    if name not in row:
        raise UserError(f"{place}: {name}: missing; expected text (there is {', '.join(map(str, row)) or 'no field'})")
    value = row[name]
    if not isinstance(value, str) or not (empty or value.strip()):
        raise UserError(f"{place}: {name}: got {shown(value)}; expected text" + " that is not empty" * (not empty))
    return value


def shown(value: Any) -> str:
    """A value as a message shows it."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(text) - _SHOWN:,} more characters)"


def read_text(path: Path) -> str:
    """The text of a UTF-8 file.

    Raises:
        UserError: it cannot be read, or is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text ({error})", remedy=_DAMAGED) from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None


def _decoded(text: str, place: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=object_with_unique_keys)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}: {error.msg}; the text begins with {text[:60]!r}"
        raise UserError(f"{place}: not JSON ({where})", remedy=_DAMAGED) from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{place}: not sound JSON ({error})", remedy=_DAMAGED) from None


@dataclass(frozen=True)
class Node:
    """One value of a JSON file, which knows its place there.

    Attributes:
        place: where it stands, as `1.states[0].entity`; empty for the whole file.
    """

    value: Any
    path: Path
    place: str = ""

    def wrong(self, expected: str, remedy: str | None = None) -> UserError:
        """The error that says that this value is not what was expected."""
        shown = json.dumps(self.value, ensure_ascii=False)
        shown = shown if len(shown) <= _NODE_SHOWN else f"{shown[:_NODE_SHOWN]}…"
        at = f", {self.place}" if self.place else ""
        return UserError(f"{self.path}{at}: got {shown}; expected {expected}", remedy)

    def __getitem__(self, key: str) -> Node:
        """A member that an object must have."""
        if not isinstance(self.value, dict) or key not in self.value:
            raise self.wrong(f"an object with the key {key!r}")
        return Node(self.value[key], self.path, f"{self.place}.{key}".lstrip("."))

    def __contains__(self, key: str) -> bool:
        return isinstance(self.value, dict) and key in self.value

    def unwrapped(self, key: str) -> Node:
        """The member of that key, or this value itself where it has none."""
        if key not in self:
            return self
        return self[key]

    def members(self) -> Iterator[tuple[str, Node]]:
        """Key and value of each member of an object."""
        if not isinstance(self.value, dict):
            raise self.wrong("an object")
        return ((key, self[key]) for key in self.value)

    def items(self) -> list[Node]:
        """The items of an array."""
        if not isinstance(self.value, list):
            raise self.wrong("an array")
        return [Node(item, self.path, f"{self.place}[{i}]") for i, item in enumerate(self.value)]

    def text(self) -> str:
        """A text, which may be empty."""
        if not isinstance(self.value, str):
            raise self.wrong("a text")
        return self.value

    def texts(self) -> tuple[str, ...]:
        """An array of texts."""
        return tuple(item.text() for item in self.items())

    def integer(self) -> int:
        """A whole number, or a text that is one: the official files hold both."""
        if isinstance(self.value, int) and not isinstance(self.value, bool):
            return self.value
        try:
            return int(self.text())
        except (ValueError, UserError):
            raise self.wrong("a whole number") from None
