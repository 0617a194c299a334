"""Split a context into whole sentences, turns of a dialogue and items of a list, each verbatim.

`sentencex` (Wikimedia) finds the ends of sentences; it knows abbreviations, initials, decimals and quotes. It takes
the number of a list item for a sentence, so lists are found here. An item with all its sentences is one unit, and so
is a turn of a dialogue.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
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


def keep_sentences(text: str, places: Collection[int]) -> str:
    """Return some of a text's sentences, by their place in `sentence_spans`; line breaks between them stay.

    All sentences give the text itself.
    """
    spans = sentence_spans(text)
    if len(places) == len(spans):
        return text
    kept = [spans[place] for place in sorted(places)]
    parts = [text[start:end] for start, end in kept[:1]]
    for (_, before), (start, end) in pairwise(kept):
        parts += ["\n" if "\n" in text[before:start] else " ", text[start:end]]
    return "".join(parts)


def _lines(text: str) -> list[Span]:
    """The lines of a text; a line that starts in lower case continues a sentence without a full stop."""
    lines: list[Span] = []
    for found in _LINE.finditer(text):
        if lines and text[lines[-1][1] - 1] not in ".!?:;" and found.group().lstrip()[0].islower():
            lines[-1] = (lines[-1][0], found.end())
        else:
            lines.append(_stripped(text, *found.span()))
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
    """The places of a list's items in a line that numbers them 1, 2, …; empty if it does not.

    An item ends at the next one, since a step may have several sentences, and the last at the end of the line.
    """
    starts: list[int] = []
    for found in _ITEM.finditer(line):
        if int(found[1]) == len(starts) + 1:
            starts.append(found.end())
    # A single number is the first item of a list only after a colon: "Steps so far: 1. Boil the water."
    if len(starts) == 1 and not line[: starts[0]].rstrip().endswith(":"):
        return []
    return starts


def _prose(text: str, start: int, end: int) -> Iterator[Span]:
    """The sentences between two places; a part without a letter (a number, a quote) belongs to another one."""
    found: list[Span] = []
    waiting = False  # whether the last part has no letter yet, so it numbers the next one
    for sentence in _segments(text[start:end]):
        span, start = _stripped(text, start, start + len(sentence)), start + len(sentence)
        part = text[slice(*span)]
        if not part:
            continue
        is_none = not _LETTER.search(part) and not _NUMBER.fullmatch(part)
        if found and (waiting or is_none):
            found[-1] = (found[-1][0], span[1])
        else:
            found.append(span)
        waiting = not _LETTER.search(text, *found[-1])
    if waiting and len(found) > 1:
        (_, last), found = found[-1], found[:-1]
        found[-1] = (found[-1][0], last)
    yield from found


def _segments(text: str) -> list[str]:
    """The text cut after its sentences by `sentencex`, with four corrections.

    It does not cut "in 1985.In 1988", but it cuts "U.S.-dollar", although no blank follows. It leaves an opening
    quotation mark between blanks with the sentence before. It does not know every abbreviation, so a sentence does not
    end after "Ms." or before a word in lower case.
    """
    segments: list[str] = []
    quotes = 0
    for sentence in (part for found in segment("en", text) for part in _GLUED_YEAR.split(found)):
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
