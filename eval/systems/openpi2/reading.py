"""JSON files whose values know where they stand, so that damage is named with its file and place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from d2e_sft.util.errors import UserError
from eval.systems import json_file

_LONGEST = 80


@dataclass(frozen=True)
class Node:
    """One value of a JSON file.

    Attributes:
        place: where it stands, as `1.states[0].entity`; empty for the whole file.
    """

    value: Any
    path: Path
    place: str = ""

    def wrong(self, expected: str, remedy: str | None = None) -> UserError:
        """The error that says that this value is not what was expected."""
        shown = json.dumps(self.value, ensure_ascii=False)
        shown = shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}…"
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


def read_json(path: Path) -> Node:
    """The content of a JSON file that is one object which is not empty.

    Raises:
        UserError: the file is missing, is no UTF-8 JSON, has a key twice, or is something else.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file", remedy="download the official files: d2e data download openpi2")
    value = json_file.read_json(path)
    node = Node(value, path)
    if not isinstance(value, dict) or not value:
        raise node.wrong("an object by procedure id that is not empty")
    return node
