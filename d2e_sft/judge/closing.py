"""The closing line of a reply: the one place where a verdict is looked for."""

from __future__ import annotations

import re

_MARKS = re.compile(r"[*_`#]")


def closing_value(reply: str, name: str) -> str | None:
    """What stands behind `NAME:` on the last line of a reply; None where that line has not this form.

    Upper and lower case, marks of Markdown and a full stop at the end make no difference. Nothing else is forgiven: a
    verdict somewhere in the reasoning is not a verdict.
    """
    last = _split(reply)[1]
    found = re.fullmatch(rf"{re.escape(name)}\s*:\s*(.*?)\s*\.?", last, flags=re.IGNORECASE)
    return " ".join(found[1].casefold().split()) if found else None


def without_closing(reply: str) -> str:
    """The reasoning above the closing line."""
    return _split(reply)[0]


def _split(reply: str) -> tuple[str, str]:
    """What stands above the last line that says something, and that line without marks."""
    lines = reply.splitlines()
    for i in range(len(lines) - 1, -1, -1):
        if text := _MARKS.sub("", lines[i]).strip():
            return "\n".join(lines[:i]).strip(), text
    return "", ""
