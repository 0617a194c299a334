"""What several sources ask of a text (does it hold an "if", is it another in disguise?) and write alike."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Literal

# substring: the letters "if" anywhere, also in "different" or "knife", and no capital "If". PIPER's published
# counts of Cosmos QA and ESTER are met by this rule only. word: the word, in any letter case.
IfRule = Literal["substring", "word"]

_NO_LETTER = re.compile(r"[\W_]+")
_WORD = re.compile(r"\w+")
_IF = re.compile(r"\bif\b", re.IGNORECASE)


def has_if(question: str, rule: IfRule) -> bool:
    """Whether a question counts as conditional."""
    return "if" in question if rule == "substring" else _IF.search(question) is not None


@lru_cache(maxsize=1024)  # rows about one page follow each other
def fingerprint(text: str) -> str:
    """The letters and digits of a text in lower case: equal for copies that differ in spacing or punctuation."""
    return _NO_LETTER.sub("", text.lower())


def words(text: str) -> str:
    """The words of a text in lower case with one blank between them, without punctuation."""
    return " ".join(_WORD.findall(text.lower()))


def word_count(text: str) -> int:
    """The number of words, split at blanks."""
    return len(text.split())


def contains_any(context: str, answers: Iterable[str]) -> bool:
    """Whether one of the answers stands in the context, letter case ignored."""
    folded = context.casefold()
    return any(answer and answer.casefold() in folded for answer in answers)


def plain_spaces(text: str) -> str:
    """The text with ordinary spaces for non-breaking ones."""
    return text.replace("\u00a0", " ")


def goal_and_steps(goal: str, steps: Sequence[str]) -> list[str]:
    """The lines of a context about a procedure: its goal, and each step so far, numbered."""
    return [f"Goal: {goal}", *(f"{number}. {step}" for number, step in enumerate(steps, start=1))]
