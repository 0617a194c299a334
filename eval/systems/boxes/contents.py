"""What a text says a box contains, as the paper's scorer reads it, and the same read out of a model's reply."""

from __future__ import annotations

import re
from collections.abc import Sequence

EMPTY = ("nothing", "is empty")
_NEXT_BOX = r",?\s*(?:and\s+)?(?:Box|Container)\s+\w+\s+(?:contains|is)\b"


def contents_of(text: str) -> frozenset[str]:
    """The things that a text lists: by commas and `and`, without `the` and the full stop, letters as they are.

    `nothing` and `is empty` are the empty set. So is an empty text, which `right` tells from them.
    """
    text = said(text)
    if text in EMPTY:
        return frozenset()
    parts = (part.strip().removeprefix("the ").removeprefix("The ").strip() for part in re.split(r",|\band\b", text))
    return frozenset(part for part in parts if part)


def right(prediction: str | None, gold: str) -> bool:
    """Whether a prediction names the things that the gold text names; of an empty box, that it is empty."""
    if prediction is None:
        return False
    if not contents_of(gold):
        return said(prediction) in EMPTY
    return contents_of(prediction) == contents_of(gold)


def said(text: str) -> str:
    """The text without its full stop and without a leading `contains`."""
    return text.strip().removesuffix(".").strip().removeprefix("contains ").strip()


def read_all(reply: str, boxes: Sequence[str]) -> list[str | None]:
    """What a reply says of each box, at its first mention; None where it says nothing."""
    return [_about(reply, box) for box in boxes]


def read_one(reply: str, box: str) -> str | None:
    """What a reply to a question about one box says: behind the box's name, else its first line."""
    found = _about(reply, box)
    if found is not None:
        return found
    lines = [line.strip() for line in reply.splitlines() if line.strip()]
    # A reply about another box is no answer about this one.
    return None if not lines or re.match(r"(?:Box|Container)\s+\w+\s+(?:contains|is)\b", lines[0]) else lines[0]


def _about(reply: str, box: str) -> str | None:
    number = re.escape(box).replace(r"\ ", r"\s+")
    match = re.search(rf"\b{number}\s+(contains|is empty)\b(.*?)(?={_NEXT_BOX}|\.|\n|$)", reply)
    if match is None:
        return None
    return "is empty" if match[1] == "is empty" else match[2].strip().rstrip(",") or None
