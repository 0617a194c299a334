"""Find two named events in a text, and mark them."""

from __future__ import annotations

import re
from bisect import bisect_right

Span = tuple[int, int]  # first character, and the one after the last
_LONGEST_EVENT = 1_000  # characters; it is a word or a few


def find_events(text: str, events: tuple[str, str], near: tuple[float, float]) -> tuple[Span, Span] | None:
    """Return the two events' spans in the text: the occurrences nearest to the expected places.

    An event may be the beginning of a word; its span is the whole word.

    Args:
        near: About where each event begins, in characters.

    Returns:
        None if no occurrence of the first event is before one of the second.
    """
    firsts, seconds = (_occurrences(text, event) for event in events)
    nearest = list(seconds)  # for each place, the nearest to the expected one among it and all later places
    for index in reversed(range(len(seconds) - 1)):
        if abs(nearest[index + 1] - near[1]) < abs(seconds[index] - near[1]):
            nearest[index] = nearest[index + 1]
    # Of two equally near, the first counts. A long text has too many pairs to look at each.
    pairs = [(at, nearest[behind]) for at in firsts if (behind := bisect_right(seconds, at)) < len(seconds)]
    if not pairs:
        return None
    best = min(pairs, key=lambda pair: abs(pair[0] - near[0]) + abs(pair[1] - near[1]))
    first, second = ((at, _word_end(text, at + len(event))) for at, event in zip(best, events, strict=True))
    return first, second


def _occurrences(text: str, event: str) -> list[int]:
    """The places of the event at the start of a word, otherwise inside one."""
    if len(event) > _LONGEST_EVENT:
        return []
    anywhere = re.escape(event)
    return [found.start() for found in re.finditer(rf"(?<![^\W\d_]){anywhere}", text)] or [
        found.start() for found in re.finditer(anywhere, text)
    ]


def _word_end(text: str, end: int) -> int:
    while text[end : end + 1].isalpha():
        end += 1
    return end


def mark_events(text: str, first: Span, second: Span) -> str:
    """Return the text with the first event in `<e1>…</e1>` and the second in `<e2>…</e2>`."""
    (a, b), (c, d) = first, second
    return f"{text[:a]}<e1>{text[a:b]}</e1>{text[b:c]}<e2>{text[c:d]}</e2>{text[d:]}"
