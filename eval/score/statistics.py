"""Bootstrap intervals and paired tests of means, and of averages of groups' means, quick with few distinct values.

Drawing n scores with replacement means drawing how often each distinct score comes up: one multinomial draw. Many
scores have few distinct values (exact match has two); then this is the ordinary percentile bootstrap at a fraction of
its memory and time. If nearly all values differ, each sample is drawn on its own. An average over groups resamples
within each group (a stratified bootstrap), since only the samples are drawn, not the groups.

Resamples of equal scores are all the same, so their interval would have width 0. They and proportions of few samples
have exact intervals (Clopper and Pearson 1934), combined by distances to their bounds (MOVER, Zou and Donner 2008).

SciPy's `bootstrap` and `permutation_test` hold all resamples in memory and know neither groups nor Holm's correction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

RESAMPLES = 2_000
PERMUTATIONS = 10_000  # the smallest p is 1 / 10,001: small enough to survive a correction over a table's rows
LEVEL = 0.95  # probability mass between the bounds of an interval
SIGNIFICANT = 0.05
FEW = 40  # proportions of at most so many samples have exact intervals
_AT_ONCE = 2_000  # permutations held in memory together
_ELEMENTS = 4_000_000  # so are draws of single samples
# A multinomial or binomial draw costs as much as this many draws of a single sample.
_COUNTS_PAY = 8
_Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """A mean and the bounds of its interval, in the unit of the values."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Difference(Interval):
    """A mean paired difference, the bounds of its interval, and a two-sided p-value.

    Attributes:
        adjusted_p: the p-value corrected for the other differences in its table; None before `holm`.
    """

    p_value: float
    adjusted_p: float | None = None

    @property
    def significant(self) -> bool:
        """Whether the p-value, corrected if possible, is below 0.05."""
        return (self.p_value if self.adjusted_p is None else self.adjusted_p) < SIGNIFICANT


def bootstrap_average(groups: Sequence[ArrayLike], *, seed: int = 0, resamples: int = RESAMPLES) -> Interval:
    """Return the mean of G groups' means with its stratified percentile bootstrap interval (Efron 1979).

    The interval is exact for proportions of few samples and for scores that are all equal.

    Args:
        groups: G arrays, each (n_g,) scores in [0, 1] of independent samples.
        seed: the same seed and values give the same bounds.

    Raises:
        ValueError: there is no group, or one is empty or not one-dimensional.
    """
    scores = _checked(groups)
    if _need_exact(scores):
        return exact_interval([(1 / len(scores), float(group.mean()), group.size) for group in scores])
    return _bootstrapped(scores, seed, resamples)


def bootstrap_gap(
    first: Sequence[ArrayLike], second: Sequence[ArrayLike], *, seed: int = 0, resamples: int = RESAMPLES
) -> Interval:
    """Return the mean over G groups of `mean(first) − mean(second)`, two sets of samples that are not paired.

    Args:
        first: G arrays, each (n_g,) scores; `second` has G arrays (m_g,) of other samples. Both are resampled.

    ValueError if the two differ in groups, or something is empty.
    """
    ones, others = _checked(first), _checked(second)
    pairs = list(zip(ones, others, strict=True))
    if _need_exact([*ones, *others]):
        signed = [(sign / len(pairs), group) for sign, own in ((1, ones), (-1, others)) for group in own]
        return exact_interval([(weight, float(group.mean()), group.size) for weight, group in signed])
    rng = np.random.default_rng(seed)
    gaps = [_resampled_means(one, rng, resamples) - _resampled_means(other, rng, resamples) for one, other in pairs]
    low, high = np.quantile(np.mean(gaps, axis=0), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(_average(ones) - _average(others), float(low), float(high))


def bootstrap_ratio(
    parts: Sequence[ArrayLike], rests: Sequence[ArrayLike], *, seed: int = 0, resamples: int = RESAMPLES
) -> Interval | None:
    """Return `p / (p + r)`, where p and r are the means of G groups' means; None if both are 0.

    Resamples in which both are 0 have no ratio and are left out of its interval. If one of them is 0, the interval is
    exact for the samples that have the other.

    Args:
        parts: G arrays, each (n_g,); `rests` has the same samples' other value, in the same order.

    ValueError if the two differ in groups or in a group's length, or something is empty.
    """
    ps, rs = _checked(parts), _checked(rests)
    p, r = _average(ps), _average(rs)
    rng = np.random.default_rng(seed)
    means = np.zeros((resamples, 2))
    for one, other in zip(ps, rs, strict=True):
        rows, counts = np.unique(np.stack([one, other], axis=1), axis=0, return_counts=True)  # (K, 2), (K,)
        means += rng.multinomial(one.size, counts / one.size, size=resamples) @ rows / one.size  # (R, 2)
    sums = means.sum(axis=1)
    if p + r == 0:
        return None
    if p == 0 or r == 0:
        return exact_interval([(1, p / (p + r), sum(int(np.count_nonzero(own)) for own in (*ps, *rs)))])
    low, high = np.quantile(means[sums > 0, 0] / sums[sums > 0], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(p / (p + r), float(low), float(high))


def paired_average(
    first: Sequence[ArrayLike], second: Sequence[ArrayLike], *, seed: int = 0, permutations: int = PERMUTATIONS
) -> Difference:
    """Return the mean of G groups' means of `second − first`, with its paired bootstrap interval and p-value.

    The p-value is that of the sign-flip permutation test, estimated from random permutations. Resamples never show a
    fall if no score fell, nor a rise if none rose: then the interval is made of the exact ones of both shares.

    Args:
        first: G arrays, each (n_g,) scores of one system; `second` those of the other on the same samples, in order.

    ValueError if the two differ in groups or in a group's length, or something is empty.
    """
    before, after = _checked(first), _checked(second)
    for one, other in zip(before, after, strict=True):
        if one.size != other.size:
            raise ValueError(f"paired scores of different lengths: {one.size} and {other.size}")
    changes = [other - one for one, other in zip(before, after, strict=True)]
    is_one_sided = all(change.min() >= 0 or change.max() <= 0 for change in changes)
    interval = exact_change(changes) if is_one_sided else _bootstrapped(changes, seed, RESAMPLES)
    rng = np.random.default_rng(seed)
    observed, as_extreme = abs(_average(changes)), 0
    for start in range(0, permutations, _AT_ONCE):
        count = min(_AT_ONCE, permutations - start)
        flipped = np.abs(np.mean([_flipped_means(change, rng, count) for change in changes], axis=0))  # (R,)
        as_extreme += int(np.count_nonzero(flipped >= observed - 1e-12))
    return Difference(**vars(interval), p_value=float((1 + as_extreme) / (1 + permutations)))


def holm(differences: Sequence[Difference]) -> list[Difference]:
    """Return the differences in the same order, with p-values adjusted for their number (Holm 1979).

    If nothing differs, at most one table in twenty calls any of them significant.
    """
    adjusted = [0.0] * len(differences)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(differences)), key=lambda i: differences[i].p_value)):
        largest = max(largest, min(1.0, (len(differences) - rank) * differences[index].p_value))
        adjusted[index] = largest
    return [replace(difference, adjusted_p=p) for difference, p in zip(differences, adjusted, strict=True)]


def exact_interval(terms: Sequence[tuple[float, float, int]]) -> Interval:
    """Return a weighted sum of independent proportions with an interval made of their exact ones.

    Args:
        terms: weight, proportion and number of samples of each. The proportion may also be a mean of scores in [0, 1].
    """
    from scipy.special import betaincinv  # a quarter of a second

    weights, shares, sizes = (np.array(column, dtype=np.float64) for column in zip(*terms, strict=True))
    hits, tail = shares * sizes, (1 - LEVEL) / 2
    below = shares - np.where(shares > 0, betaincinv(hits, sizes - hits + 1, tail), 0)
    above = np.where(shares < 1, betaincinv(hits + 1, sizes - hits, 1 - tail), 1) - shares
    down, up = np.where(weights > 0, (below, above), (above, below))
    mean = float(weights @ shares)
    return Interval(mean, mean - float(np.linalg.norm(weights * down)), mean + float(np.linalg.norm(weights * up)))


def exact_change(changes: Sequence[ArrayLike]) -> Interval:
    """Return the mean of G groups' mean changes in [−1, 1] with an interval from the shares that rose and fell."""
    parts = [(sign, np.maximum(sign * np.asarray(own), 0)) for own in changes for sign in (1, -1)]
    return exact_interval([(sign / len(changes), float(own.mean()), own.size) for sign, own in parts])


def _need_exact(groups: Sequence[_Floats]) -> bool:
    """Whether all groups have equal scores, or all are proportions and one has equal scores or few."""
    constant = [bool(group.min() == group.max()) for group in groups]
    is_small = any(constant) or any(group.size <= FEW for group in groups)
    return all(constant) or (is_small and all(np.isin(group, (0, 1)).all() for group in groups))


def _bootstrapped(scores: Sequence[_Floats], seed: int, resamples: int) -> Interval:
    rng = np.random.default_rng(seed)
    means = np.mean([_resampled_means(group, rng, resamples) for group in scores], axis=0)  # (R,)
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(_average(scores), float(low), float(high))


def _resampled_means(scores: _Floats, rng: np.random.Generator, resamples: int) -> _Floats:
    distinct, counts = np.unique(scores, return_counts=True)  # (K,), (K,)
    if scores.size < _COUNTS_PAY * distinct.size:
        parts = _parts(resamples, scores.size)
        return np.concatenate([scores[rng.integers(scores.size, size=(r, scores.size))].mean(axis=1) for r in parts])
    draws = rng.multinomial(scores.size, counts / scores.size, size=resamples)  # (R, K)
    means: _Floats = draws @ distinct / scores.size  # (R,)
    return means


def _flipped_means(change: _Floats, rng: np.random.Generator, count: int) -> _Floats:
    # Under the null each difference is as likely to have the other sign; per distinct size the sum of
    # n random signs is 2·Binomial(n, ½) − n.
    sizes, counts = np.unique(np.abs(change), return_counts=True)
    if change.size < _COUNTS_PAY * sizes.size:
        bits = (_bits(rng, rows, change.size) for rows in _parts(count, change.size))
        return np.concatenate([np.where(own, -1.0, 1.0) @ change / change.size for own in bits])
    positive = rng.binomial(counts, 0.5, size=(count, counts.size))  # (R, K)
    means: _Floats = (2 * positive - counts) @ sizes / change.size  # (R,)
    return means


def _bits(rng: np.random.Generator, rows: int, n: int) -> NDArray[np.uint8]:
    return np.unpackbits(rng.integers(256, size=(rows, -(-n // 8)), dtype=np.uint8), axis=1, count=n)


def _parts(rows: int, n: int) -> list[int]:
    """Split `rows` into parts that fit in memory with n values per row."""
    most = max(1, _ELEMENTS // n)
    return [min(most, rows - start) for start in range(0, rows, most)]


def _average(groups: Sequence[_Floats]) -> float:
    return float(np.mean([group.mean() for group in groups]))


def _checked(groups: Sequence[ArrayLike]) -> list[_Floats]:
    scores = [np.asarray(values, dtype=np.float64) for values in groups]
    for group in scores:
        if group.ndim != 1 or group.size == 0:
            raise ValueError(f"scores of shape {group.shape}; expected one dimension and at least one value")
    if not scores:
        raise ValueError("no group of scores; expected at least one")
    return scores
