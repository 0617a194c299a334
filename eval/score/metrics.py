"""SQuAD's metrics: text is normalised first, then compared by exact match and token-level F1.

The best of several accepted answers counts. Every match of an option's text rests on the same normalisation.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from d2e_sft.util.answers import exact_match, normalise, token_f1

__all__ = ["exact_match", "normalise", "option_key", "same_answers", "token_f1"]

_DECIMAL_POINT = re.compile(r"(?<=\d)\.(?=\d)")


@lru_cache(maxsize=4096)
def option_key(option: str) -> str:
    """What makes an option the same as another: normalised text, with two exceptions that keep options apart.

    Decimal points count, for SQuAD's rule would make 125 of 12.5; and where normalising leaves nothing (`A`,
    `?`), the text itself counts.
    """
    return normalise(_DECIMAL_POINT.sub(" point ", option)) or option.strip().casefold()


def same_answers(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether two answers name the same texts, in whatever order."""
    return {option_key(text) for text in one} == {option_key(text) for text in other}
