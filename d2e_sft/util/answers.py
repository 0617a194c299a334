"""SQuAD's answer metrics: exact match and token-level F1 of normalised text."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_SIGNS = re.compile(r"[-+−]?\d(?:[\d.,:/]*\d)?|[+#%$€£<>=*/]")  # numbers as they are written, and signs with a meaning


def normalise(text: str) -> str:
    """Lower-case the text, drop ASCII punctuation and English articles, collapse spaces (SQuAD 1.1's script)."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def is_same_answer(one: str, other: str) -> bool:
    """Whether two answers are equal up to letter case, punctuation and articles; `-5` is not `5`, nor `C++` `C#`."""
    return normalise(one) == normalise(other) and _SIGNS.findall(one) == _SIGNS.findall(other)


def contains(text: str, words: str) -> bool:
    """Whether the text has the words one after another, both normalised."""
    key = normalise(words)
    return bool(key) and f" {key} " in f" {normalise(text)} "


def exact_match(prediction: str, golds: Iterable[str]) -> float:
    """1.0 when the normalised prediction equals any normalised gold answer, else 0.0."""
    return float(normalise(prediction) in {normalise(gold) for gold in golds})


def token_f1(prediction: str, golds: Iterable[str]) -> float:
    """The best F1, in [0, 1], between the prediction's bag of tokens and that of any gold answer.

    If one side normalises to nothing, the score is 1 if both do, otherwise 0 (SQuAD 2.0's script).
    """
    tokens, best = normalise(prediction).split(), 0.0
    for gold in (normalise(gold).split() for gold in golds):
        shared = (Counter(tokens) & Counter(gold)).total()
        # 2PR/(P+R) with P = shared/|tokens| and R = shared/|gold|
        best = max(best, 2 * shared / (len(tokens) + len(gold)) if tokens and gold else float(tokens == gold))
    return best
