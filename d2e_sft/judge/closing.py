"""The closing line of a reply: the one place where a verdict is looked for."""

from __future__ import annotations

import re

_MARKS = "*_`# \t"


def closing_value(reply: str, name: str) -> str | None:
    """What stands behind `NAME:` on the last line of a reply; None where that line has not this form.

    Upper and lower case, emphasis in Markdown and a full stop at the end make no difference. Nothing else is
    forgiven: a verdict somewhere in the reasoning is not a verdict.
    """
    lines = [line for line in reply.splitlines() if line.strip(_MARKS)]
    if not lines:
        return None
    last = re.sub(r"[*_`]", "", lines[-1]).strip(_MARKS)
    found = re.fullmatch(rf"{re.escape(name)}\s*:\s*(.*?)\s*\.?", last, flags=re.IGNORECASE)
    return " ".join(found[1].casefold().split()) if found else None


def without_closing(reply: str) -> str:
    """The reasoning above the closing line."""
    lines = reply.strip().splitlines()
    return "\n".join(lines[:-1]).strip()
