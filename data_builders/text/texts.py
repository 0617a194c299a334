"""Small functions on texts that several sources share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Literal

# substring: the letters "if" anywhere, even in "different" or "knife", but not a capital "If". Only this rule gives
# PIPER's published counts of Cosmos QA and ESTER. word: the word, in any letter case.
IfRule = Literal["substring", "word"]

_NO_LETTER = re.compile(r"[\W_]+")
_IF = re.compile(r"\bif\b", re.IGNORECASE)


def has_if(question: str, rule: IfRule) -> bool:
    """Return whether a question counts as conditional."""
    return "if" in question if rule == "substring" else _IF.search(question) is not None


@lru_cache(maxsize=1024)  # rows about one page follow each other
def fingerprint(text: str) -> str:
    """Return the letters and digits of a text in lower case: equal for copies with other spacing or punctuation."""
    return _NO_LETTER.sub("", text.lower())


def word_count(text: str) -> int:
    """Return the number of words, split at blanks."""
    return len(text.split())


def contains_any(context: str, answers: Iterable[str]) -> bool:
    """Return whether the context has one of the answers, ignoring letter case."""
    folded = context.casefold()
    return any(answer and answer.casefold() in folded for answer in answers)


def plain_spaces(text: str) -> str:
    """Return the text with ordinary spaces instead of non-breaking ones."""
    return text.replace("\u00a0", " ")


def goal_and_steps(goal: str, steps: Sequence[str]) -> list[str]:
    """Return the lines of a context about a procedure: its goal, and each step so far, numbered."""
    return [f"Goal: {goal}", *(f"{number}. {step}" for number, step in enumerate(steps, start=1))]
