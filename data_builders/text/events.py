"""Which words of a text are two named events, and the text with both marked."""

from __future__ import annotations

import re
from itertools import product

Span = tuple[int, int]  # first character, and the one after the last


def find_events(text: str, events: tuple[str, str], near: tuple[float, float]) -> tuple[Span, Span] | None:
    """Where the two events stand in the text, start and end: of all occurrences the nearest to the expected places.

    An event may be given as the beginning of a word; the whole word is meant.

    Args:
        near: about where each event begins, in characters.

    Returns:
        None where no occurrence of the first stands before one of the second.
    """
    pairs = [pair for pair in product(*(_occurrences(text, event) for event in events)) if pair[0] < pair[1]]
    if not pairs:
        return None
    best = min(pairs, key=lambda pair: sum(abs(at - place) for at, place in zip(pair, near, strict=True)))
    first, second = ((at, _word_end(text, at + len(event))) for at, event in zip(best, events, strict=True))
    return first, second


def _occurrences(text: str, event: str) -> list[int]:
    """Where the event stands at the start of a word, or, if it never does, inside one."""
    anywhere = re.escape(event)
    return [found.start() for found in re.finditer(rf"(?<![^\W\d_]){anywhere}", text)] or [
        found.start() for found in re.finditer(anywhere, text)
    ]


def _word_end(text: str, end: int) -> int:
    while text[end : end + 1].isalpha():
        end += 1
    return end


def mark_events(text: str, first: Span, second: Span) -> str:
    """The text with the two events between `<e1>` and `</e1>`, `<e2>` and `</e2>`, the first before the second."""
    (a, b), (c, d) = first, second
    return f"{text[:a]}<e1>{text[a:b]}</e1>{text[b:c]}<e2>{text[c:d]}</e2>{text[d:]}"
