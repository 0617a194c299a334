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
from math import ceil

from d2e_sft.util.progress import Progress

SHORT_TEXT = 40  # words
SHORT_GRAM, LONG_GRAM = 3, 5

Words = tuple[str, ...]


def near_pairs(left: Sequence[Words], right: Sequence[Words], threshold: float) -> dict[tuple[int, int], float]:
    """Return the similarity of each pair of a left and a right text that reaches a `threshold` above 0, by places."""
    similar: dict[tuple[int, int], float] = {}
    for gram, least, most in ((SHORT_GRAM, SHORT_GRAM, ceil(SHORT_TEXT / threshold)), (LONG_GRAM, SHORT_TEXT, 0)):
        theirs = dict(_texts(right, gram, least, most))
        index: dict[Words, list[int]] = defaultdict(list)
        for j, grams in theirs.items():
            for one in grams:
                index[one].append(j)
        for i, grams in Progress(_texts(left, gram, least, most), desc="near-duplicates", unit="text"):
            shared = sorted((one for one in grams if one in index), key=lambda one: len(index[one]))
            needed = ceil(threshold * len(grams) - 1e-9)  # less the rounding of the product
            rarest = shared[: max(0, len(shared) - needed + 1)]
            for j in {j for one in rarest for j in index[one]}:
                common = len(grams & theirs[j])
                if (similarity := common / (len(grams) + len(theirs[j]) - common)) >= threshold:
                    similar[i, j] = max(similarity, similar.get((i, j), 0.0))
    return dict(sorted(similar.items()))


def _texts(texts: Sequence[Words], gram: int, least: int, most: int) -> Iterator[tuple[int, frozenset[Words]]]:
    """Yield place and n-grams of the texts of `least` words or more and fewer than `most` (0 for no limit)."""
    for place, words in enumerate(texts):
        if least <= len(words) and (not most or len(words) < most):
            yield place, frozenset(zip(*(words[start:] for start in range(gram)), strict=False))
