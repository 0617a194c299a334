"""Pairs of texts that share most of their word n-grams: MinHash finds the candidates, Jaccard decides.

The Jaccard similarity of two texts is that of their sets of n consecutive words, with n = 5. One changed word takes
five 5-grams with it, so a sentence of ten words could never be near another: texts of fewer than 40 words are
compared by 3-grams. A short and a long text that are as long as the threshold allows are compared by 3-grams too,
so that no pair falls between the two.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import chain
from math import ceil, log, log1p
from typing import Any

import numpy as np

SHORT_TEXT = 40  # words
SHORT_GRAM, LONG_GRAM = 3, 5
_PERMUTATIONS = 96  # at most; at a threshold of 0.8 it takes 18 bands of 4
_MISSED = 1e-4  # largest share of the pairs at the threshold that LSH may miss

Words = tuple[str, ...]
_Hashes = np.ndarray[Any, Any]


@dataclass(frozen=True)
class NearPair:
    """Places of two texts in their lists, and the Jaccard similarity of their n-grams."""

    left: int
    right: int
    similarity: float


def near_pairs(left: Sequence[Words], right: Sequence[Words], threshold: float) -> list[NearPair]:
    """Every pair of a left and a right text, given as words, of at least that similarity.

    Of the pairs that lie exactly at the threshold at most one in 10,000 is missed; far fewer of the more similar ones.

    Args:
        threshold: from 0.1 to 1.
    """
    similar: dict[tuple[int, int], float] = {}
    for gram, least, most in ((SHORT_GRAM, SHORT_GRAM, ceil(SHORT_TEXT / threshold)), (LONG_GRAM, SHORT_TEXT, None)):
        ours, theirs = _within(left, least, most), _within(right, least, most)
        for i, j, similarity in _similar(left, ours, right, theirs, gram, threshold):
            similar[i, j] = max(similarity, similar.get((i, j), 0.0))
    return [NearPair(i, j, similarity) for (i, j), similarity in sorted(similar.items())]


def shingles(words: Words, gram: int) -> frozenset[Words]:
    """The set of all runs of `gram` consecutive words."""
    return frozenset(words[i : i + gram] for i in range(len(words) - gram + 1))


def jaccard(one: frozenset[Words], other: frozenset[Words]) -> float:
    """Shared n-grams as a share of all n-grams of both."""
    shared = len(one & other)
    return shared / (len(one) + len(other) - shared)


def _within(texts: Sequence[Words], least: int, most: int | None) -> list[int]:
    return [i for i, words in enumerate(texts) if least <= len(words) and (most is None or len(words) < most)]


def _similar(
    left: Sequence[Words], ours: list[int], right: Sequence[Words], theirs: list[int], gram: int, threshold: float
) -> list[tuple[int, int, float]]:
    our_hashes, their_hashes = _hashes(left, ours, gram), _hashes(right, theirs, gram)
    ours, theirs = _sharing(our_hashes, their_hashes, threshold), _sharing(their_hashes, our_hashes, threshold)
    if not ours or not theirs:
        return []
    bands, rows = _bands(threshold)
    index = defaultdict(list)
    for j in theirs:
        for key in _band_keys(their_hashes[j], bands, rows):
            index[key].append(j)
    sets = lru_cache(maxsize=50_000)(lambda j: shingles(right[j], gram))
    found = []
    for i in ours:
        candidates = {j for key in _band_keys(our_hashes[i], bands, rows) for j in index.get(key, ())}
        own = shingles(left[i], gram) if candidates else frozenset()
        for j in candidates:
            similarity = jaccard(own, sets(j))
            if similarity >= threshold:
                found.append((i, j, similarity))
    return found


def _sharing(own: Mapping[int, _Hashes], others: Mapping[int, _Hashes], threshold: float) -> list[int]:
    """The texts that may be near one of the others: most of their n-grams stand somewhere among all of the others'.

    Nearly all texts of two sets have few n-grams of the other set at all, and need no sketch.
    """
    if not own or not others:
        return []
    known = _different(np.concatenate(list(others.values())))
    hashes = np.concatenate(list(own.values()))
    shared = known[np.minimum(np.searchsorted(known, hashes), len(known) - 1)] == hashes
    lengths = np.fromiter(map(len, own.values()), dtype=np.int64, count=len(own))
    counts = np.add.reduceat(shared, np.concatenate([[0], lengths.cumsum()[:-1]]), dtype=np.int64)
    # One less: two n-grams of a text may have one hash.
    return [place for place, enough in zip(own, counts >= threshold * lengths - 1, strict=True) if enough]


def _bands(threshold: float) -> tuple[int, int]:
    """Bands, and rows a band: the most rows for which the permutations suffice to miss no more than `_MISSED`.

    Superfluous candidates cost only time, since every candidate is verified.
    """
    if threshold == 1:
        return 2, _PERMUTATIONS // 2
    needed = {rows: max(2, ceil(log(_MISSED) / log1p(-(threshold**rows)))) for rows in range(1, _PERMUTATIONS // 2)}
    return max(
        ((bands, rows) for rows, bands in needed.items() if bands * rows <= _PERMUTATIONS), key=lambda it: it[1]
    )


def _band_keys(hashes: _Hashes, bands: int, rows: int) -> list[tuple[int, bytes]]:
    """A key for each band of the MinHash of a set (Broder 1997): two sets share it as likely as J ** rows.

    Args:
        hashes: different 32-bit hashes of the set's members, (n,).
    """
    salted = hashes.astype(np.uint64)[:, None] + _SALTS[: bands * rows]  # (n, bands × rows)
    least = _mixed(salted).min(axis=0).reshape(bands, rows)
    return [(band, row.tobytes()) for band, row in enumerate(least)]


def _mixed(values: _Hashes) -> _Hashes:
    """The finaliser of SplitMix64 (Steele, Lea and Flood 2014): a permutation of 64-bit numbers, near to random."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


# Added to a hash before it is mixed, a salt makes another permutation of it.
_SALTS = np.random.default_rng(1).integers(2**64, size=_PERMUTATIONS, dtype=np.uint64)


@cache
def _checksum(word: str) -> int:
    return zlib.crc32(word.encode())


def _different(values: _Hashes) -> _Hashes:
    """The different values, sorted; sorting millions of them is several times faster than numpy's hash table."""
    values = np.sort(values)
    return values[np.concatenate([[True], values[1:] != values[:-1]])] if len(values) else values


def _hashes(texts: Sequence[Words], places: Sequence[int], gram: int) -> dict[int, _Hashes]:
    """For each of the texts the different 32-bit hashes of its n-grams, in order.

    All texts are hashed at once: their words' checksums are laid end to end and mixed as a polynomial, and n-grams
    that run over the end of a text are dropped.
    """
    if not places:
        return {}
    lengths = np.fromiter((len(texts[i]) for i in places), dtype=np.int64, count=len(places))
    words = chain.from_iterable(texts[i] for i in places)
    checks = np.fromiter(map(_checksum, words), dtype=np.uint64, count=lengths.sum())
    count = len(checks) - gram + 1
    mixed = np.zeros(count, dtype=np.uint64)
    for shift in range(gram):
        mixed = mixed * np.uint64(0x9E3779B97F4A7C15) + checks[shift : shift + count]
    ends = lengths.cumsum()
    owners = np.repeat(np.arange(len(places)), lengths)[:count]
    whole = np.arange(count) + gram <= ends[owners]
    # Owner above, hash below: one sort finds the different hashes of every text.
    low = np.uint64(32)
    keys = _different((owners.astype(np.uint64) << low | (mixed * np.uint64(0xD6E8FEB86659FD93)) >> low)[whole])
    bounds = np.searchsorted(keys >> low, np.arange(len(places) + 1, dtype=np.uint64))
    hashes = keys & np.uint64(0xFFFFFFFF)
    return {place: hashes[bounds[i] : bounds[i + 1]] for i, place in enumerate(places)}
