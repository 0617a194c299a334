"""A context as whole sentences, turns of a dialogue and items of a list, each verbatim.

Where a sentence ends is said by `sentencex` (Wikimedia), which knows abbreviations, initials, decimals and quotes. It
takes the number of a list's item for a sentence, so lists are found here: an item, with all of its sentences, is one
unit, and so is a turn of a dialogue.
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
# Sentences that lack the blank between them: "… in 2004.The next day".
_GLUED_END = re.compile(r"""[a-z\d)\]"'][.!?]+["')\]]?$""")
# After a year sentencex needs the blank.
_GLUED_YEAR = re.compile(r"(?<=\b\d{4}[.!?])(?=[A-Z][a-z])")
# Titles that sentencex lacks.
_TITLE = re.compile(r"\b(?:Ms|Mx|Messrs|Mmes|Maj|Brig|Adm|Cmdr|Sgt|Cpl|Pvt|Supt|Insp|Det|Amb|Atty)\.\s+$")
_LONE_QUOTE = re.compile(r'\s(")\s*$')


def split_sentences(text: str) -> list[str]:
    """The sentences of a text, the turns of a dialogue, the items of a list; each verbatim, in order."""
    return [text[start:end] for start, end in sentence_spans(text)]


def sentence_spans(text: str) -> list[Span]:
    """Where the sentences of a text stand, blanks around them left out; see `split_sentences`."""
    lines = _lines(text)
    return [span for line in lines for span in _line_spans(text, line, alone=len(lines) == 1)]


def keep_sentences(text: str, places: Collection[int]) -> str:
    """Some of a text's sentences, by their place in `sentence_spans`; one that began a line still does.

    All of them are the text itself.
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
    """The lines of a text; one that goes on in small letters after no full stop is broken within a sentence."""
    lines: list[Span] = []
    for found in _LINE.finditer(text):
        if lines and text[lines[-1][1] - 1] not in ".!?:;" and found.group().lstrip()[0].islower():
            lines[-1] = (lines[-1][0], found.end())
        else:
            lines.append(_stripped(text, *found.span()))
    return lines


def _line_spans(text: str, line: Span, *, alone: bool) -> Iterator[Span]:
    start, end = line
    said = text[start:end]
    if not alone and (_TURN.match(said) or _BULLET.match(said)):
        yield line
        return
    items = [start + place for place in _items(said)]
    if items and not _LETTER.search(text, start, items[0]):
        items[0] = start
    yield from _prose(text, start, items[0] if items else end)
    for first, last in pairwise([*items, end]):
        yield _stripped(text, first, last)


def _items(line: str) -> list[int]:
    """Where the items of a list begin in a line that numbers them 1, 2, …; empty where it does not.

    An item reaches to the next one, since a step may have several sentences, and the last to the end of the line.
    """
    starts: list[int] = []
    for found in _ITEM.finditer(line):
        if int(found[1]) == len(starts) + 1:
            starts.append(found.end())
    # One number alone is a list's first item only after a colon: "Steps so far: 1. Boil the water."
    if len(starts) == 1 and not line[: starts[0]].rstrip().endswith(":"):
        return []
    return starts


def _prose(text: str, start: int, end: int) -> Iterator[Span]:
    """The sentences between two places. What has no letter (a number, a quotation mark) is none, but part of one."""
    found: list[Span] = []
    waiting = False  # whether what was found last has no letter yet: the number of what follows
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
    """The text cut after its sentences, by `sentencex` but for four things.

    It cuts no "in 1985.In 1988"; it cuts "U.S.-dollar", where no blank follows; it leaves an opening quotation mark
    that stands between blanks with the sentence before; and it does not know every abbreviation, so a sentence ends
    neither after "Ms." nor where the text goes on in small letters.
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
