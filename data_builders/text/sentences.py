"""Split a text into whole sentences, turns of a dialogue and items of a list, each verbatim; excerpts of long pages.

`sentencex` (Wikimedia) finds the ends of sentences. It takes the number of a list item for a sentence, so lists are
found here. An item with all its sentences is one unit, and so is a turn of a dialogue.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from sentencex import segment

Span = tuple[int, int]  # first character, and the one after the last

_LINE = re.compile(r"[^\n]*[^\s][^\n]*")
_TURN = re.compile(r"\s*[A-Z][\w .'-]{0,30}:(?=\s|$)")
_ITEM = re.compile(r"(?:^|(?<=[.!?:;])\s+)(?=(?:Step\s+)?\(?(\d{1,3})[.):]\s+[\W_]*[^\W\d_])", re.IGNORECASE)
_BULLET = re.compile(r"\s*(?:(?:Step\s+)?\(?\d{1,3}[.):]|[-*•–])\s", re.IGNORECASE)
_NUMBER = re.compile(r"\(?\d{1,3}[.):]")
_LETTER = re.compile(r"[^\W\d_]")
# Sentences without a blank between them: "… in 2004.The next day".
_GLUED_END = re.compile(r"""[a-z\d)\]"'][.!?]+["')\]]?$""")
# sentencex needs the blank after a year.
_GLUED_YEAR = re.compile(r"(?<=\b\d{4}[.!?])(?=[A-Z][a-z])")
# Titles that sentencex does not know.
_TITLE = re.compile(r"\b(?:Ms|Mx|Messrs|Mmes|Maj|Brig|Adm|Cmdr|Sgt|Cpl|Pvt|Supt|Insp|Det|Amb|Atty)\.\s+$")
_LONE_QUOTE = re.compile(r'\s(")\s*$')


def split_sentences(text: str) -> list[str]:
    """Return the sentences of a text, turns of a dialogue and items of a list; each verbatim, in order."""
    return [text[start:end] for start, end in sentence_spans(text)]


def sentence_spans(text: str) -> list[Span]:
    """Return the (start, end) of each sentence of a text, without blanks around it; see `split_sentences`."""
    lines = _lines(text)
    return [span for line in lines for span in _line_spans(text, line, single=len(lines) == 1)]


def _lines(text: str) -> list[Span]:
    """The lines of a text; a line that starts in lower case continues a sentence without a full stop."""
    lines: list[Span] = []
    for match in _LINE.finditer(text):
        if lines and text[lines[-1][1] - 1] not in ".!?:;" and match.group().lstrip()[0].islower():
            lines[-1] = (lines[-1][0], match.end())
        else:
            lines.append(_stripped(text, *match.span()))
    return lines


def _line_spans(text: str, line: Span, *, single: bool) -> Iterator[Span]:
    start, end = line
    content = text[start:end]
    if not single and (_TURN.match(content) or _BULLET.match(content)):
        yield line
        return
    items = [start + place for place in _items(content)]
    if items and not _LETTER.search(text, start, items[0]):
        items[0] = start
    yield from _prose(text, start, items[0] if items else end)
    for first, last in pairwise([*items, end]):
        yield _stripped(text, first, last)


def _items(line: str) -> list[int]:
    """The places of a line's items, numbered 1, 2, …, each up to the next, since a step may have several sentences."""
    starts: list[int] = []
    for match in _ITEM.finditer(line):
        if int(match[1]) == len(starts) + 1:
            starts.append(match.end())
    # A single number is the first item of a list only after a colon: "Steps so far: 1. Boil the water."
    if len(starts) == 1 and not line[: starts[0]].rstrip().endswith(":"):
        return []
    return starts


def _prose(text: str, start: int, end: int) -> Iterator[Span]:
    """The sentences between two places; a part without a letter (a number, a quote) belongs to another one."""
    sentences: list[Span] = []
    waiting = False  # whether the last part has no letter yet, so it numbers the next one
    for sentence in _segments(text[start:end]):
        span, start = _stripped(text, start, start + len(sentence)), start + len(sentence)
        part = text[slice(*span)]
        if not part:
            continue
        is_none = not _LETTER.search(part) and not _NUMBER.fullmatch(part)
        if sentences and (waiting or is_none):
            sentences[-1] = (sentences[-1][0], span[1])
        else:
            sentences.append(span)
        waiting = not _LETTER.search(text, *sentences[-1])
    if waiting and len(sentences) > 1:
        (_, last), sentences = sentences[-1], sentences[:-1]
        sentences[-1] = (sentences[-1][0], last)
    yield from sentences


def _segments(text: str) -> list[str]:
    """The text cut after its sentences by `sentencex`, with four corrections.

    It does not cut "in 1985.In 1988", but it cuts "U.S.-dollar", although no blank follows. It leaves an opening
    quotation mark between blanks with the sentence before. It does not know every abbreviation, so a sentence does not
    end after "Ms." or before a word in lower case.
    """
    segments: list[str] = []
    quotes = 0
    for sentence in (part for piece in segment("en", text) for part in _GLUED_YEAR.split(piece)):
        before = segments[-1] if segments else ""
        joined = before and not before[-1].isspace() and not (_GLUED_END.search(before) and sentence[0].isupper())
        if joined or (before and (sentence.lstrip()[:1].islower() or _TITLE.search(before))):
            segments[-1] += sentence
        elif (mark := _LONE_QUOTE.search(before)) and quotes % 2:  # the mark opens a quotation
            segments[-1:] = [before[: mark.start(1)], before[mark.start(1) :] + sentence]
        else:
            segments.append(sentence)
        quotes += sentence.count('"')
    return segments


def _stripped(text: str, start: int, end: int) -> Span:
    part = text[start:end]
    left = len(part) - len(part.lstrip())
    return start + left, start + max(left, len(part.rstrip()))


# Excerpts: the part of a long page with an answer.

_LONGEST_HEADING = 20  # words


def excerpt(page: str, chunks: Sequence[Span], answer: Span, limit: int | None) -> str | None:
    """Return the sentences with the answer and as many around them as fit in `limit` words; None if none fit.

    A long list is no sentence; there the published `chunks` of the page take the place of sentences.
    """
    if limit is None or len(page.split()) <= limit:
        return page.strip()
    return _grown(page, _sentences_near(page, answer, limit), answer, limit) or _grown(page, chunks, answer, limit)


def chunk_spans(page: str, chunks: Iterable[str]) -> list[Span]:
    """Return the place of each chunk in the page; a long text between two chunks is a chunk of its own.

    Headings are short texts between chunks; they belong to the chunk that follows.
    """
    spans: list[Span] = []
    last = 0
    for text in chunks:
        place = page.find(text, last) if text else -1
        if place < 0:
            continue
        start = place
        if page[last:place].strip():
            if len(page[last:place].split()) > _LONGEST_HEADING:
                spans.append((last, place))
            else:
                start = last
        last = place + len(text)
        spans.append((start, last))
    if page[last:].strip():
        spans.append((last, len(page)))
    return spans


def _sentences_near(page: str, answer: Span, words: int) -> list[Span]:
    """The whole sentences within `words` words before and after the answer."""
    starts = [0, *(blank.end() for blank in re.finditer(r"\s+", page))]
    first = max(bisect_right(starts, answer[0]) - 1 - words, 0)
    end = min(bisect_left(starts, answer[1]) + words, len(starts))
    window = page[starts[first] : starts[end] if end < len(starts) else len(page)]
    spans = [(starts[first] + start, starts[first] + stop) for start, stop in sentence_spans(window)]
    # A window that ends within the page may end within a sentence.
    return spans[first > 0 : len(spans) - (end < len(starts))]


def _grown(page: str, spans: Sequence[Span], answer: Span, limit: int) -> str | None:
    """The spans with all of the answer and as many around them, the next one first, as fit; None if these do not."""
    holding = [number for number, (start, end) in enumerate(spans) if start < answer[1] and answer[0] < end]
    if not holding or answer[0] < spans[holding[0]][0] or spans[holding[-1]][1] < answer[1]:
        return None
    first, last = holding[0], holding[-1]

    def fits(first: int, last: int) -> bool:
        return first >= 0 and last < len(spans) and len(page[spans[first][0] : spans[last][1]].split()) <= limit

    if not fits(first, last):
        return None
    growing = True
    while growing:
        growing = False
        if fits(first, last + 1):
            last, growing = last + 1, True
        if fits(first - 1, last):
            first, growing = first - 1, True
    return page[spans[first][0] : spans[last][1]].strip()
