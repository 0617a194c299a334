"""The part of a long page with an answer: whole sentences, or chunks if the answer is in a long list."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right

from data_builders.text import sentences
from data_builders.text.texts import word_count

_LONGEST_HEADING = 20
_BLANKS = re.compile(r"\s+")


def chunk_spans(page: str, chunks: list[str]) -> list[tuple[int, int]]:
    """Return the (start, end) of each chunk in the page; a long text between two chunks is a chunk of its own.

    Headings are short texts between chunks; they belong to the chunk that follows.
    """
    spans: list[tuple[int, int]] = []
    last = 0
    for text in chunks:
        at = page.find(text, last) if text else -1
        if at < 0:
            continue
        if page[last:at].strip():
            if word_count(page[last:at]) > _LONGEST_HEADING:
                spans.append((last, at))
            else:
                at = last
        last = page.index(text, last) + len(text)
        spans.append((at, last))
    if page[last:].strip():
        spans.append((last, len(page)))
    return spans


def sentence_spans(page: str, answer: tuple[int, int], words: int) -> list[tuple[int, int]]:
    """Return the (start, end) of the whole sentences within `words` words before and after the answer."""
    starts = [0, *(blank.end() for blank in _BLANKS.finditer(page))]
    first = max(bisect_right(starts, answer[0]) - 1 - words, 0)
    end = min(bisect_left(starts, answer[1]) + words, len(starts))
    window = (starts[first], starts[end] if end < len(starts) else len(page))
    found = sentences.sentence_spans(page[window[0] : window[1]])
    spans = [(window[0] + start, window[0] + end) for start, end in found]
    # If the window ends within the page, it may end within a sentence.
    return spans[first > 0 : len(spans) - (end < len(starts))]


def excerpt(page: str, chunks: list[tuple[int, int]], answer: tuple[int, int], limit: int | None) -> str | None:
    """Return the sentences with the answer and as many around them as fit in `limit` words.

    None if both the sentences and the chunks with the answer are too long.
    """
    if limit is None or word_count(page) <= limit:
        return page.strip()
    return _grown(page, sentence_spans(page, answer, limit), answer, limit) or _grown(page, chunks, answer, limit)


def _grown(page: str, spans: list[tuple[int, int]], answer: tuple[int, int], limit: int) -> str | None:
    """The spans with all of the answer and as many around them, the next one first, as fit; None if these do not."""
    holding = [number for number, (start, end) in enumerate(spans) if start < answer[1] and answer[0] < end]
    if not holding or answer[0] < spans[holding[0]][0] or spans[holding[-1]][1] < answer[1]:
        return None
    first, last = holding[0], holding[-1]

    def words(first: int, last: int) -> int:
        return word_count(page[spans[first][0] : spans[last][1]])

    if words(first, last) > limit:
        return None
    growing = True
    while growing:
        growing = False
        if last + 1 < len(spans) and words(first, last + 1) <= limit:
            last, growing = last + 1, True
        if first > 0 and words(first - 1, last) <= limit:
            first, growing = first - 1, True
    return page[spans[first][0] : spans[last][1]].strip()
