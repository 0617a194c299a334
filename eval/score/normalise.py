"""Text normalisation as in SQuAD, on which every score and every match of an option's text rests."""

from __future__ import annotations

import re
import string
from collections.abc import Sequence

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_DECIMAL_POINT = re.compile(r"(?<=\d)\.(?=\d)")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """Lower case, without ASCII punctuation and English articles, whitespace collapsed (SQuAD 1.1's script)."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def option_key(option: str) -> str:
    """What makes an option the same as another: normalised text, with two exceptions that keep options apart.

    Decimal points count, for SQuAD's rule would make 125 of 12.5; and where normalising leaves nothing (`A`,
    `?`), the text itself counts.
    """
    return normalise(_DECIMAL_POINT.sub(" point ", option)) or option.strip().casefold()


def same_answers(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether two answers name the same texts, in whatever order."""
    return {option_key(text) for text in one} == {option_key(text) for text in other}
