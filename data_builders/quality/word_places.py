"""A proxy, without a language model, for how well a context predicts an nli label; it compares refined contexts.

A classifier of word n-grams (as in `context_free.py`) sees the hypothesis. It also sees, for each of its words in the
context, the third of the context where the word is. So it knows the order of events, which is the least that a context
tells. Where it does no better with a context than without, it cannot compare refiners.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from d2e_sft.data.sample import EventSample
from data_builders.quality.context_free import held_out_accuracy

_PARTS = 3
_WORD = re.compile(r"\w+")


def accuracy_by_places(samples: Sequence[EventSample], contexts: Sequence[str], seed: int = 0) -> float | None:
    """Return the classifier's accuracy on rows whose premises it was not trained on; None if there are too few.

    Args:
        samples: nli rows of one dataset.
        contexts: the visible part of each row's premise.
        seed: of the folds.
    """
    texts = [_placed(sample.question, context) for sample, context in zip(samples, contexts, strict=True)]
    return held_out_accuracy(samples, texts, seed)


def _placed(hypothesis: str, context: str) -> str:
    """Return the hypothesis, followed by its words as `word_0` if they are in the context's first third, and so on."""
    words = _WORD.findall(context.casefold())
    where: dict[str, set[int]] = {}
    for at, word in enumerate(words):
        where.setdefault(word, set()).add(_PARTS * at // len(words))
    places = [
        f"{word}_{part}" for word in _WORD.findall(hypothesis.casefold()) for part in sorted(where.get(word, ()))
    ]
    return " ".join([hypothesis, *places])
