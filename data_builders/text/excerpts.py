"""The piece of a long page that shows an answer: whole sentences, or chunks where a long list holds it."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right

from data_builders.text.sentences import split_sentences
from data_builders.text.texts import word_count

_LONGEST_HEADING = 20
_BLANKS = re.compile(r"\s+")


def chunk_spans(page: str, chunks: list[str]) -> list[tuple[int, int]]:
    """(start, end) of each chunk in the page; what stands between two of them is one of its own if it is long.

    Headings stand between chunks; they belong to what follows them.
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
    """(start, end) of the whole sentences among so many words before the answer and after it."""
    starts = [0, *(blank.end() for blank in _BLANKS.finditer(page))]
    first = max(bisect_right(starts, answer[0]) - 1 - words, 0)
    end = min(bisect_left(starts, answer[1]) + words, len(starts))
    window = (starts[first], starts[end] if end < len(starts) else len(page))
    spans, at = [], window[0]
    for sentence in split_sentences(page[window[0] : window[1]]):
        start = page.index(sentence, at)
        at = start + len(sentence)
        spans.append((start, at))
    # Where the window ends within the page, it may end within a sentence.
    return spans[first > 0 : len(spans) - (end < len(starts))]


def excerpt(page: str, chunks: list[tuple[int, int]], answer: tuple[int, int], limit: int | None) -> str | None:
    """The sentences that hold the answer and as many around them as fit in `limit` words.

    None where the sentences of the answer are too long, and the chunks of the answer too.
    """
    if limit is None or word_count(page) <= limit:
        return page.strip()
    return grown(page, sentence_spans(page, answer, limit), answer, limit) or grown(page, chunks, answer, limit)


def grown(page: str, spans: list[tuple[int, int]], answer: tuple[int, int], limit: int) -> str | None:
    """The spans that hold the answer and as many around them, the next one first, as fit in `limit` words.

    None where the answer's own spans are too long, or no span holds all of it.
    """
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
