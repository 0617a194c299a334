"""Texts of data and models inside Markdown."""

from __future__ import annotations

import re
from typing import Any

_OTHER_LINK = re.compile(r"\]\((?!https?://|#)")


def one_line(value: Any) -> str:
    """A value as text on one line, its bars escaped for a table."""
    return " ".join(str(value).split()).replace("|", r"\|")


def harmless_markdown(text: str) -> str:
    """Markdown without HTML, in which only web pages and places on the page are linked.

    For cards, which show texts of other people's data: not every site that shows Markdown sanitises it.
    """
    return _OTHER_LINK.sub(r"]\(", text.replace("<", "&lt;"))


def inline_code(text: str) -> str:
    """The text as code within a line, whatever back quotes it holds."""
    ticks = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    room = " " if len(ticks) > 1 else ""
    return f"{ticks}{room}{text}{room}{ticks}"
