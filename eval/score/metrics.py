"""SQuAD's metrics, exact match and token-level F1 of normalised text, and how options are compared."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from d2e_sft.util.answers import exact_match, normalise, token_f1

__all__ = ["exact_match", "normalise", "option_key", "same_answers", "token_f1"]

_DECIMAL_POINT = re.compile(r"(?<=\d)\.(?=\d)")


@lru_cache(maxsize=4096)
def option_key(option: str) -> str:
    """Return normalised text to compare options by, with two exceptions that keep options apart.

    Decimal points count, because SQuAD's rule turns 12.5 into 125. If normalising leaves nothing (`A`, `?`), the text
    itself counts.
    """
    return normalise(_DECIMAL_POINT.sub(" point ", option)) or option.strip().casefold()


def same_answers(one: Sequence[str], other: Sequence[str]) -> bool:
    """Return whether two answers name the same texts, in any order."""
    return {option_key(text) for text in one} == {option_key(text) for text in other}
