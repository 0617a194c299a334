"""A context as whole sentences, each verbatim."""

from __future__ import annotations

import re

_SENTENCE_END = re.compile(r"""[.!?…]+["'”’)\]]*(?=\s)""")
_ABBREVIATIONS_TEXT = """
mr mrs ms dr prof st jr sr gen col lt capt rev hon sen rep gov vs etc eg ie no inc co corp ltd u.s u.k u.n
e.g i.e a.m p.m jan feb mar apr jun jul aug sep sept oct nov dec
"""
_ABBREVIATIONS = frozenset(_ABBREVIATIONS_TEXT.split())


def split_sentences(text: str) -> list[str]:
    """The sentences of a text, or, where it has several lines (a dialogue), its lines; each verbatim."""
    if "\n" in text:
        return [line for line in text.split("\n") if line.strip()]
    sentences, start = [], 0
    for end in _SENTENCE_END.finditer(text):
        if _ends_sentence(text, end):
            sentences.append(text[start : end.end()].strip())
            start = end.end()
    sentences.append(text[start:].strip())
    return [sentence for sentence in sentences if sentence]


def _ends_sentence(text: str, end: re.Match[str]) -> bool:
    words = text[: end.start()].split()
    last = words[-1].strip("\"'(“‘").casefold() if words else ""
    if end.group() == "." and (last in _ABBREVIATIONS or (len(last) == 1 and last.isalpha() and last != "i")):
        return False
    following = text[end.end() :].lstrip()
    return not following[:1].islower()


def join_sentences(context: str, sentences: list[str]) -> str:
    """Some of a context's sentences as a text of the same make: a dialogue keeps one line a turn."""
    return ("\n" if "\n" in context else " ").join(sentences)
