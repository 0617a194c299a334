"""Names of a procedure's parts as Python has them: `Wash_Sneakers`, `remove_shoelaces`."""

from __future__ import annotations

import keyword
import re

_LEFT_OUT = {"a", "an", "the", "my", "your", "his", "her", "their", "our"}


def snake(text: str) -> str:
    """`the pan` → `pan`, `Turn on the tap.` → `turn_on_tap`."""
    return _valid("_".join(word.lower() for word in _words(text)))


def title(text: str) -> str:
    """`Wash the sneakers` → `Wash_Sneakers`."""
    return _valid("_".join(word.capitalize() for word in _words(text)))


def _words(text: str) -> list[str]:
    words = re.findall(r"\w+", text.replace("'", ""))
    return [word for word in words if word.lower() not in _LEFT_OUT] or words


def _valid(name: str) -> str:
    if not name or name[0].isdigit():
        return f"n_{name}"
    return f"{name}_" if keyword.iskeyword(name) else name
