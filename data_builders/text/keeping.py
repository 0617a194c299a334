"""What remains of a text if only some of its sentences, or of their spans (`clauses.py`), stay."""

import re
from collections.abc import Collection, Iterable, Sequence
from itertools import groupby, pairwise

from data_builders.text.clauses import Span, split_spans
from data_builders.text.sentences import sentence_spans

# What a shortened sentence does not begin and end with.
_OPENING = re.compile(r"[\s,;:—–-]+|(?:and|but|or|so|yet|nor|that)\b\s*|[”’)\]]\s*", re.IGNORECASE)
_CLOSING = re.compile(r"[\s,;:—–-]+$")
_MARK = re.compile(r"(?:,|—|–|--+)\s*")
_BRACKETED = re.compile(r"\([^()]*\)|\[[^][]*\]")
_END = re.compile(r"""\s*[.!?…]+(?:\s*["'”’)\]]+)*$""")


def keep_sentences(text: str, places: Collection[int]) -> str:
    """Return some of a text's sentences, by their place in `sentence_spans`; line breaks between them stay.

    All sentences give the text itself.
    """
    spans = sentence_spans(text)
    if len(places) == len(spans):
        return text
    return _join(text, ((spans[place], text[slice(*spans[place])]) for place in sorted(places)))


def _join(text: str, kept: Iterable[tuple[tuple[int, int], str]]) -> str:
    """Return what remains of some sentences of a text, joined; `kept` has their places and remaining parts."""
    parts: list[str] = []
    before = 0  # the end of the last sentence
    for (start, end), remaining in kept:
        if parts:
            parts.append("\n" if "\n" in text[before:start] else " ")
        parts.append(remaining)
        before = end
    return "".join(parts)


def with_needed(spans: Sequence[Span], kept: Collection[int]) -> set[int]:
    """Return the spans to keep, by number, with all that they need."""
    needed, waiting = set[int](), list(kept)
    while waiting:
        number = waiting.pop()
        if number not in needed:
            needed.add(number)
            waiting += spans[number].needs
    return needed


def keep_spans(text: str, kept: Collection[int], spans: Sequence[Span] | None = None) -> str:
    """Return what remains of a text if only some of its spans stay, with what these need (`with_needed`).

    Its words are a subsequence of the text's. A sentence that lost its start begins with a capital, one that lost its
    end has the full stop of the original; line breaks between sentences stay. All spans give the text itself.
    """
    spans = split_spans(text) if spans is None else spans
    staying = with_needed(spans, kept)
    if len(staying) == len(spans):
        return text
    sentences = [list(group) for _, group in groupby(range(len(spans)), key=lambda number: spans[number].sentence)]
    places = [(spans[sentence[0]].start, spans[sentence[-1]].end) for sentence in sentences]
    remaining = [_remaining(text, spans, sentence, staying) for sentence in sentences]
    return _join(text, (pair for pair in zip(places, remaining, strict=True) if pair[1]))


def _remaining(text: str, spans: Sequence[Span], sentence: Sequence[int], kept: Collection[int]) -> str:
    """What remains of one sentence, with one blank where spans are missing, and none before a comma."""
    whole = text[spans[sentence[0]].start : spans[sentence[-1]].end]
    staying = [number for number in sentence if number in kept]
    if len(staying) == len(sentence) or not staying:
        return whole if staying else ""
    remaining = text[spans[staying[0]].start : spans[staying[0]].end]
    for before, number in pairwise(staying):
        part = text[spans[number].start : spans[number].end]
        if number != before + 1:
            gone, part = _BRACKETED.sub("", text[spans[before].end : spans[number].start]), part.lstrip()
            remaining = remaining.rstrip()
            # A mark that closed what is gone goes, and one that would follow another.
            if (mark := _MARK.match(part)) and (
                remaining.endswith((*",;:—–-",)) or (spans[number].kind == "rest" and mark.group().rstrip() in gone)
            ):
                part = part[mark.end() :]
            remaining += "" if part.startswith((*",;:.!?)",)) else " "
        remaining += part
    if staying[0] != sentence[0]:
        while (opening := _OPENING.match(remaining)) and opening.end() < len(remaining):
            remaining = remaining[opening.end() :]
        if whole[:1].isupper() or not whole[:1].isalpha():
            remaining = remaining[:1].upper() + remaining[1:]
    if staying[-1] != sentence[-1]:
        end = _END.search(whole)
        remaining = _CLOSING.sub("", remaining) + (end.group() if end else "")
        for begins, ends in ("()", "[]", "“”", '""'):
            # It closed what is gone, unless it is a quotation's that began in an earlier sentence.
            if (
                remaining.endswith(ends)
                and _closes_more(remaining, begins, ends)
                and (begins in "([" or not _closes_more(whole, begins, ends))
            ):
                remaining = remaining[:-1].rstrip()
    return remaining.strip()


def _closes_more(text: str, begins: str, ends: str) -> bool:
    """Whether a text closes more brackets or quotations than it opens."""
    return text.count(ends) % 2 == 1 if begins == ends else text.count(begins) < text.count(ends)
