"""Which words of a text are two named events, and the text with both marked."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence

Span = tuple[int, int]  # first character, and the one after the last
_LONGEST_EVENT = 1_000  # characters; it is a word or a few


def find_events(text: str, events: tuple[str, str], near: tuple[float, float]) -> tuple[Span, Span] | None:
    """Where the two events stand in the text, start and end: of all occurrences the nearest to the expected places.

    An event may be given as the beginning of a word; the whole word is meant.

    Args:
        near: about where each event begins, in characters.

    Returns:
        None where no occurrence of the first stands before one of the second.
    """
    firsts, seconds = (_occurrences(text, event) for event in events)
    nearest = _nearest_from(seconds, near[1])
    # A first one of two equally near counts. Not every pair is looked at: a long text has too many.
    pairs = [(at, nearest[behind]) for at in firsts if (behind := bisect_right(seconds, at)) < len(seconds)]
    if not pairs:
        return None
    best = min(pairs, key=lambda pair: abs(pair[0] - near[0]) + abs(pair[1] - near[1]))
    first, second = ((at, _word_end(text, at + len(event))) for at, event in zip(best, events, strict=True))
    return first, second


def _occurrences(text: str, event: str) -> list[int]:
    """Where the event stands at the start of a word, or, if it never does, inside one."""
    if len(event) > _LONGEST_EVENT:
        return []
    anywhere = re.escape(event)
    return [found.start() for found in re.finditer(rf"(?<![^\W\d_]){anywhere}", text)] or [
        found.start() for found in re.finditer(anywhere, text)
    ]


def _nearest_from(places: Sequence[int], expected: float) -> list[int]:
    """For each place that which is nearest to the expected one among it and all behind it."""
    nearest = list(places)
    for index in reversed(range(len(places) - 1)):
        if abs(nearest[index + 1] - expected) < abs(places[index] - expected):
            nearest[index] = nearest[index + 1]
    return nearest


def _word_end(text: str, end: int) -> int:
    while text[end : end + 1].isalpha():
        end += 1
    return end


def mark_events(text: str, first: Span, second: Span) -> str:
    """The text with the two events between `<e1>` and `</e1>`, `<e2>` and `</e2>`, the first before the second."""
    (a, b), (c, d) = first, second
    return f"{text[:a]}<e1>{text[a:b]}</e1>{text[b:c]}<e2>{text[c:d]}</e2>{text[d:]}"
