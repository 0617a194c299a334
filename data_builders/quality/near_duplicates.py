"""Find all pairs of texts that share most of their word n-grams.

The Jaccard similarity of two texts is that of their sets of n consecutive words, with n = 5. One changed word changes
five 5-grams, so a sentence of ten words could never be near another: texts of fewer than 40 words are compared by
3-grams. So are a short text and a longer one that can still reach the threshold.

The result is exact. A text that is near another shares at least the share `threshold` of its n-grams with it, so one
of its few rarest n-grams is in both. Only texts with one of those are compared (prefix filter, Chaudhuri et al. 2006).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil

SHORT_TEXT = 40  # words
SHORT_GRAM, LONG_GRAM = 3, 5

Words = tuple[str, ...]


@dataclass(frozen=True)
class NearPair:
    """Places of two texts in their lists, and the Jaccard similarity of their n-grams."""

    left: int
    right: int
    similarity: float


def near_pairs(left: Sequence[Words], right: Sequence[Words], threshold: float) -> list[NearPair]:
    """Return every pair of a left and a right text, given as words, of at least that similarity.

    Args:
        threshold: above 0, at most 1.
    """
    similar: dict[tuple[int, int], float] = {}
    for gram, least, most in ((SHORT_GRAM, SHORT_GRAM, ceil(SHORT_TEXT / threshold)), (LONG_GRAM, SHORT_TEXT, 0)):
        theirs = dict(_texts(right, gram, least, most))
        index: dict[Words, list[int]] = defaultdict(list)
        for j, grams in theirs.items():
            for one in grams:
                index[one].append(j)
        for i, grams in _texts(left, gram, least, most):
            shared = sorted((one for one in grams if one in index), key=lambda one: len(index[one]))
            needed = ceil(threshold * len(grams) - 1e-9)  # less the rounding of the product
            rarest = shared[: max(0, len(shared) - needed + 1)]
            for j in {j for one in rarest for j in index[one]}:
                if (similarity := jaccard(grams, theirs[j])) >= threshold:
                    similar[i, j] = max(similarity, similar.get((i, j), 0.0))
    return [NearPair(i, j, similarity) for (i, j), similarity in sorted(similar.items())]


def jaccard(one: frozenset[Words], other: frozenset[Words]) -> float:
    """Return the number of shared n-grams divided by the number of all n-grams of both."""
    shared = len(one & other)
    return shared / (len(one) + len(other) - shared)


def _texts(texts: Sequence[Words], gram: int, least: int, most: int) -> Iterator[tuple[int, frozenset[Words]]]:
    """Yield place and n-grams of the texts of `least` words or more and fewer than `most` (0 for no limit)."""
    for place, words in enumerate(texts):
        if least <= len(words) and (not most or len(words) < most):
            yield place, frozenset(zip(*(words[start:] for start in range(gram)), strict=False))
