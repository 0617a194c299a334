"""Does a refined context still say what the original says of an nli label? A proxy that needs no model.

A classifier of word n-grams (as in `context_free.py`) sees the hypothesis and, of each of its words that stands in the
context, in which third it stands: the order in which events are told is the least that a context says of them. Where
it does no better with a context than without one, it cannot judge refiners.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from d2e_sft.data.sample import EventSample
from data_builders.quality.context_free import held_out_accuracy

_PARTS = 3
_WORD = re.compile(r"\w+")


def accuracy_by_places(samples: Sequence[EventSample], contexts: Sequence[str], seed: int = 0) -> float | None:
    """The classifier's accuracy on rows whose premises it was not trained on; None where there are too few.

    Args:
        samples: nli rows of one dataset.
        contexts: what of each row's premise is shown.
        seed: of the division into five parts.
    """
    texts = [_placed(sample.question, context) for sample, context in zip(samples, contexts, strict=True)]
    return held_out_accuracy(samples, texts, seed)


def _placed(hypothesis: str, context: str) -> str:
    """The hypothesis, followed by its words as `word_0` where they stand in the context's first third, and so on."""
    words = _WORD.findall(context.casefold())
    where: dict[str, set[int]] = {}
    for at, word in enumerate(words):
        where.setdefault(word, set()).add(_PARTS * at // len(words))
    places = [
        f"{word}_{part}" for word in _WORD.findall(hypothesis.casefold()) for part in sorted(where.get(word, ()))
    ]
    return " ".join([hypothesis, *places])
