"""Intervals and paired tests, of means and of scores that are functions of counts, and Holm's correction.

A mean of samples, or of groups' means, has a stratified bootstrap interval: samples are weighted at random, within
their groups. Weights are uniform on the simplex (the Bayesian bootstrap, Rubin 1981). Equal scores are all the same in
each resample, so each bound takes one more sample at its end of the scale. For one group this is Gaffke's bound
(2005), which no scores between the ends are known to break, and for a proportion the exact one (Clopper and Pearson
1934). `docs/coverage_table.py` simulates how often the intervals hold the truth.

The weights are gamma draws, one for each distinct score: scores with few values (exact match has two) cost little.

F1 and macro-F1 are functions of counts that add up over items (a question, a procedure). Their bootstrap weighs items
in the same way, and each bound takes one more item of average size. Their paired test is approximate randomisation
(Noreen 1989; Yeh 2000): if two systems do not differ, the counts of an item may be swapped. For a share this is the
sign-flip test of paired means.

SciPy's `bootstrap` and `permutation_test` hold all resamples in memory and know neither groups nor Holm's correction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

RESAMPLES = 2_000
PERMUTATIONS = 10_000  # the smallest p is 1 / 10,001: small enough to survive a correction over a table's rows
LEVEL = 0.95  # probability mass between the bounds of an interval
SIGNIFICANT = 0.05
_TAIL = (1 - LEVEL) / 2
_TAILS = (_TAIL, 1 - _TAIL)
_SAME = 1e-12  # values that differ by less differ in rounding only
_AT_ONCE = 2_000  # permutations held in memory together
_ELEMENTS = 4_000_000  # random numbers held in memory together
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

    `adjusted_p` is corrected for the other differences in its table; None before `holm`.
    """

    p_value: float
    adjusted_p: float | None = None

    @property
    def significant(self) -> bool:
        """Whether the p-value, corrected if possible, is below 0.05."""
        return (self.p_value if self.adjusted_p is None else self.adjusted_p) < SIGNIFICANT


def holm(p_values: ArrayLike) -> _Floats:
    """Return p-values (N,) adjusted for their number, in the same order (Holm 1979).

    If nothing differs, at most one table in twenty calls any of them significant.
    """
    raw = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(raw, kind="stable")
    adjusted = np.empty(raw.size)
    adjusted[order] = np.maximum.accumulate(np.minimum(1.0, (raw.size - np.arange(raw.size)) * raw[order]))
    return adjusted


# Means ---------------------------------------------------------------------------------------------------------------


def bootstrap_average(
    groups: Sequence[ArrayLike],
    *,
    weights: Sequence[float] | None = None,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Interval:
    """Return a weighted sum of G groups' means with its stratified bootstrap interval (Rubin 1981, Gaffke 2005).

    The interval of a proportion is exact.

    Args:
        groups: G arrays, each (n_g,) scores in [0, 1] of independent samples.
        weights: G numbers; None averages the groups. 1 and −1 give the difference of two groups of other samples.

    ValueError if there is no group, one is empty or not one-dimensional, or weights and groups differ in number.
    """
    scores = _checked(groups)
    sizes = [1 / len(scores)] * len(scores) if weights is None else weights
    return _combined(scores, sizes, (0, 1), seed, resamples)


def bootstrap_ratio(
    parts: Sequence[ArrayLike], rests: Sequence[ArrayLike], *, seed: int = 0, resamples: int = RESAMPLES
) -> Interval | None:
    """Return `p / (p + r)`, where p and r are the means of G groups' means; None if both are 0.

    Bounds are those of `bootstrap_average`; one more sample has only the rest, or only the part.

    `parts` are G arrays, each (n_g,); `rests` has the same samples' other value, in the same order. ValueError if they
    differ in shape, or something is empty.
    """
    ps, rs = _checked(parts), _checked(rests)
    p, r = (float(np.mean([group.mean() for group in groups])) for groups in (ps, rs))
    if p + r == 0:
        return None
    if p == 0 or r == 0:  # without drawing
        return bootstrap_average([[p / (p + r)] * sum(int(np.count_nonzero(group)) for group in (*ps, *rs))])
    rng, sums, most = np.random.default_rng(seed), np.zeros((resamples, 2)), np.zeros(resamples)
    for part, rest in zip(ps, rs, strict=True):
        rows, counts = np.unique(np.stack([part, rest], axis=1), axis=0, return_counts=True)  # (K, 2), (K,)
        draws = rng.standard_gamma(counts, size=(resamples, len(rows)))  # (R, K)
        share = 1 / draws.sum(axis=1)
        sums, most = sums + draws @ rows * share[:, None], np.maximum(most, share)
    extra, totals = rng.standard_exponential(resamples) * most, sums.sum(axis=1)
    low, high = (sums[:, 0] / (totals + extra), (sums[:, 0] + extra) / (totals + extra))
    return Interval(p / (p + r), *(float(np.quantile(*bound)) for bound in ((low, _TAIL), (high, 1 - _TAIL))))


def paired_average(
    first: Sequence[ArrayLike], second: Sequence[ArrayLike], *, seed: int = 0, permutations: int = PERMUTATIONS
) -> Difference:
    """Return the mean of G groups' means of `second − first`, with its paired bootstrap interval and p-value.

    The p-value is that of the sign-flip permutation test, estimated from random permutations. In one group whose
    scores are 0 or 1 the interval leaves out 0 where the test's p-value is below 0.05.

    `first` are G arrays, each (n_g,) scores of one system; `second` those of the other on the same samples, in order.
    ValueError if they differ in shape, or something is empty.
    """
    before, after = _checked(first), _checked(second)
    for old, new in zip(before, after, strict=True):
        if old.size != new.size:
            raise ValueError(f"paired scores of different lengths: {old.size} and {new.size}")
    changes = [new - old for old, new in zip(before, after, strict=True)]
    interval = _combined(changes, [1 / len(changes)] * len(changes), (-1, 1), seed, RESAMPLES)
    rng = np.random.default_rng(seed)
    observed, as_extreme = abs(float(np.mean([change.mean() for change in changes]))), 0
    for start in range(0, permutations, _AT_ONCE):
        count = min(_AT_ONCE, permutations - start)
        flipped = np.abs(np.mean([_flipped_means(change, rng, count) for change in changes], axis=0))  # (R,)
        as_extreme += int(np.count_nonzero(flipped >= observed - 1e-12))
    return Difference(**vars(interval), p_value=float((1 + as_extreme) / (1 + permutations)))


def _combined(
    groups: Sequence[_Floats], weights: Sequence[float], ends: tuple[float, float], seed: int, resamples: int
) -> Interval:
    """Return a weighted sum of G groups' means of scores between the `ends` of a scale, with its interval.

    A resample gives each sample a random weight, in proportion to what the sample counts in the sum. It adds to the
    sum the weighted mean of the samples' distances to their groups' means. A bound takes one more sample, at the end
    of the scale and in the group where it moves the sum most.
    """
    factors, sizes = np.array(weights, dtype=np.float64), np.array([group.size for group in groups])  # (G,)
    means = np.array([group.mean() for group in groups])
    mean, share = float(factors @ means), factors / sizes
    # One sample has no distance to its own mean, so groups of one sample share a mean.
    centres = np.where(sizes == 1, means[sizes == 1].mean(), means) if (sizes == 1).any() else means
    rng, moved, total = np.random.default_rng(seed), np.zeros(resamples), np.zeros(resamples)
    for group, centre, weight in zip(groups, centres, share, strict=True):
        # Distances to a mean of few samples are too small, by this factor on average (Bessel).
        spread = np.sqrt(group.size / (group.size - 1)) if len(groups) > 1 and group.size > 1 else 1.0
        distances, counts = np.unique((group - centre) * spread, return_counts=True)  # (K,), (K,)
        drawn = [
            (draws @ distances, draws.sum(axis=1))
            for rows in _parts(resamples, distances.size)
            for draws in [rng.standard_gamma(counts, size=(rows, distances.size))]
        ]
        by_group, totals = (np.concatenate(parts) for parts in zip(*drawn, strict=True))
        moved, total = moved + weight * by_group, total + abs(weight) * totals
    extra, bounds = rng.standard_exponential(resamples), []
    for low, high, tail in ((*ends, _TAIL), (*ends[::-1], 1 - _TAIL)):
        pushes = share * (np.where(factors > 0, low, high) - centres)
        most = np.argmax(np.abs(pushes))
        shifts = (moved + extra * pushes[most]) / (total + extra * abs(share[most]))  # (R,)
        exact = _proportion_bound(groups[0], low, tail) if len(groups) == 1 and factors[0] > 0 else None
        bound = mean + np.abs(factors).sum() * np.quantile(shifts, tail) if exact is None else factors[0] * exact
        bounds.append(float(np.clip(bound, *np.sort(np.outer(ends, factors), axis=0).sum(axis=1))))
    return Interval(mean, *bounds)


def _proportion_bound(scores: _Floats, end: float, tail: float) -> float | None:
    """Return the same bound without drawing, if the scores and the end have at most two values."""
    from scipy.special import betaincinv  # a quarter of a second

    values, counts = np.unique(np.append(scores, end), return_counts=True)
    if values.size > 2:
        return None
    return float(values[0] + np.ptp(values) * betaincinv(counts[-1], counts[0], tail))


def _flipped_means(change: _Floats, rng: np.random.Generator, count: int) -> _Floats:
    # Under the null each difference is as likely to have the other sign; per distinct size the sum of
    # n random signs is 2·Binomial(n, ½) − n.
    sizes, counts = np.unique(np.abs(change), return_counts=True)
    if change.size < _COUNTS_PAY * sizes.size:
        flips = [_bits(rng, rows, change.size).astype(np.float64) @ change for rows in _parts(count, change.size)]
        return (change.sum() - 2 * np.concatenate(flips)) / change.size
    positive = rng.binomial(counts, 0.5, size=(count, counts.size))  # (R, K)
    means: _Floats = (2 * positive - counts) @ sizes / change.size  # (R,)
    return means


def _bits(rng: np.random.Generator, rows: int, n: int) -> NDArray[np.uint8]:
    return np.unpackbits(rng.integers(256, size=(rows, -(-n // 8)), dtype=np.uint8), axis=1, count=n)


def _parts(rows: int, width: int) -> Iterator[int]:
    """Split `rows` into parts that fit in memory with `width` values per row."""
    most = max(1, _ELEMENTS // width)
    yield from (min(most, rows - start) for start in range(0, rows, most))


def _checked(groups: Sequence[ArrayLike]) -> list[_Floats]:
    scores = [np.asarray(values, dtype=np.float64) for values in groups]
    for group in scores:
        if group.ndim != 1 or group.size == 0:
            raise ValueError(f"scores of shape {group.shape}; expected one dimension and at least one value")
    if not scores:
        raise ValueError("no group of scores; expected at least one")
    return scores


# Functions of counts -------------------------------------------------------------------------------------------------


def share(counts: NDArray[Any]) -> _Floats:
    """Return the ratio of hits and totals, (…, 2) → (…,); NaN without a total."""
    return _ratio(counts[..., 0], counts[..., 1], np.nan)


def f1(counts: NDArray[Any]) -> _Floats:
    """Return F1 of predicted, predicted and right, gold, gold and found: (…, 4) → (…,)."""
    precision = _ratio(counts[..., 1], counts[..., 0], 0.0)
    recall = _ratio(counts[..., 3], counts[..., 2], 0.0)
    return _ratio(2 * precision * recall, precision + recall, 0.0)


def macro_f1(counts: NDArray[Any]) -> _Floats:
    """Return macro-F1 over the classes that occur, like scikit-learn: confusions gold × predicted (…, C·C) → (…,)."""
    by_class, occurs = f1_by_class(counts)
    means: _Floats = by_class.sum(axis=-1) / np.maximum(occurs.sum(axis=-1), 1)
    return means


def macro_f1_all(counts: NDArray[Any]) -> _Floats:
    """Return macro-F1 over all classes; one that does not occur has F1 0."""
    means: _Floats = f1_by_class(counts)[0].mean(axis=-1)
    return means


def f1_by_class(counts: NDArray[Any]) -> tuple[_Floats, NDArray[np.bool_]]:
    """Return F1 of each class and whether it occurs, both (…, C), from confusions (…, C·C)."""
    classes = round(counts.shape[-1] ** 0.5)
    confusions = np.asarray(counts).reshape(*counts.shape[:-1], classes, classes)
    right = np.diagonal(confusions, axis1=-2, axis2=-1)
    either = confusions.sum(axis=-1) + confusions.sum(axis=-2)  # 2·TP + FP + FN
    return _ratio(2 * right, either, 0.0), either > 0


def _ratio(above: NDArray[Any], below: NDArray[Any], empty: float) -> _Floats:
    out = np.full(np.broadcast_shapes(above.shape, below.shape), empty)
    ratio: _Floats = np.divide(above, below, out=out, where=below > 0)
    return ratio


# Name of a form, as files have it → the score of counts.
FORMS: Mapping[str, Callable[[NDArray[Any]], _Floats]] = {
    "share": share,
    "correlation": share,  # the mean of items' correlations
    "f1": f1,
    "macro_f1": macro_f1,
    "macro_f1_all": macro_f1_all,
}


def _ends(form: str) -> tuple[float, float]:
    """Return the least and the highest score."""
    return (-1.0 if form == "correlation" else 0.0, 1.0)


def score_of(form: str, counts: ArrayLike) -> float | None:
    """Return the score of all items' counts, (N, K); None if there is nothing to divide by."""
    value = float(FORMS[form](_checked_counts(counts).sum(axis=0)))
    return None if np.isnan(value) else value


def bootstrap_counts(form: str, counts: ArrayLike, *, seed: int = 0, resamples: int = RESAMPLES) -> Interval:
    """Return the score of the items' counts (N, K) with its bootstrap interval over items.

    A share with a total of 1 for each item is a proportion, and its interval that of `bootstrap_average`. A score of 0
    or 1 has the exact interval of a proportion of the items.

    ValueError if there is no item, or the score is undefined.
    """
    items = _checked_counts(counts)
    if form == "correlation":
        return _combined([items[:, 0]], [1], _ends(form), seed, resamples)
    if _has_values(form, items):
        return bootstrap_average([items[:, 0]], seed=seed, resamples=resamples)
    return _over_items(_defined(form, items), FORMS[form], items, _sizes(form, items), _ends(form), seed, resamples)


def paired_counts(
    form: str, first: ArrayLike, second: ArrayLike, *, seed: int = 0, permutations: int = PERMUTATIONS
) -> Difference:
    """Return `score(second) − score(first)` of N items, with its paired bootstrap interval and two-sided p-value.

    Both are (N, K) counts of one system each, in the same order. Shares with a total of 1 for each item have the
    interval of `paired_average`. ValueError if the counts differ in shape, there is no item, or a score is undefined.
    """
    before, after = _checked_counts(first), _checked_counts(second)
    if before.shape != after.shape:
        raise ValueError(f"paired counts of different shapes: {before.shape} and {after.shape}")
    function, width = FORMS[form], before.shape[1]
    observed = _defined(form, after) - _defined(form, before)
    low, high = _ends(form)
    ends = (low - high, high - low)
    if _has_values(form, before) and _has_values(form, after):
        interval = _combined([after[:, 0] - before[:, 0]], [1], ends, seed, RESAMPLES)
    else:
        both, sizes = np.concatenate([before, after], axis=1), _sizes(form, before) + _sizes(form, after)
        interval = _over_items(
            observed, lambda sums: function(sums[:, width:]) - function(sums[:, :width]), both, sizes, ends, seed
        )
    pairs, times = np.unique(np.concatenate([before, after], axis=1), axis=0, return_counts=True)  # (D, 2K), (D,)
    moved, totals = pairs[:, width:] - pairs[:, :width], (before.sum(axis=0), after.sum(axis=0))
    rng, as_extreme = np.random.default_rng(seed), 0
    for rows in _parts(permutations, len(pairs)):
        shift = rng.binomial(times, 0.5, size=(rows, len(pairs))) @ moved  # (r, K): what passes from one to the other
        differences = function(totals[1] - shift) - function(totals[0] + shift)
        # Where a swap leaves one without anything to divide by, it counts against a difference.
        as_extreme += int(np.count_nonzero(~(np.abs(differences) < abs(observed) - 1e-12)))
    return Difference(**vars(interval), p_value=(1 + as_extreme) / (1 + permutations))


def _over_items(
    observed: float,
    score: Callable[[_Floats], _Floats],
    items: _Floats,
    sizes: _Floats,
    ends: tuple[float, float],
    seed: int,
    resamples: int = RESAMPLES,
) -> Interval:
    """Return the interval of a score, a function of sums of the items' counts (N, K), between the `ends` of a scale.

    A resample weighs each item at random. A bound takes one more item of the average of the `sizes` (N,), which has
    the score at that end of the scale. Many items have the same counts and are drawn together.
    """
    distinct, times = np.unique(np.column_stack([sizes, items]), axis=0, return_counts=True)  # (D, 1 + K), (D,)
    rng = np.random.default_rng(seed)
    parts = (rng.standard_gamma(times, size=(rows, len(distinct))) for rows in _parts(resamples, len(distinct)))
    sums = np.concatenate([weights @ distinct for weights in parts])  # (R, 1 + K)
    drawn = score(sums[:, 1:])
    if np.ptp(drawn) < _SAME:  # exact, without drawing
        return _combined([np.full(np.count_nonzero(sizes), observed)], [1], ends, seed, resamples)
    extra = rng.standard_exponential(resamples) * sizes[sizes > 0].mean()
    share = extra / (sums[:, 0] + extra)
    bounds = (np.quantile(drawn + share * (end - drawn), tail) for end, tail in zip(ends, _TAILS, strict=True))
    return Interval(observed, *map(float, bounds))


def _has_values(form: str, items: _Floats) -> bool:
    """Whether the counts are those of a mean of one value for each item."""
    return form in ("share", "correlation") and bool((items[:, 1] == 1).all())


def _sizes(form: str, items: _Floats) -> _Floats:
    """Return how much each item counts, (N,): its total, what it predicts and has to find, or its confusions."""
    columns = {"share": [1], "correlation": [1], "f1": [0, 2]}.get(form, range(items.shape[1]))
    sizes: _Floats = items[:, list(columns)].sum(axis=1)
    return sizes


def _defined(form: str, counts: _Floats) -> float:
    value = score_of(form, counts)
    if value is None:
        raise ValueError(f"the {form} of {len(counts)} items has nothing to divide by")
    return value


def _checked_counts(counts: ArrayLike) -> _Floats:
    values = np.asarray(counts, dtype=np.float64)
    if values.ndim != 2 or not len(values):
        raise ValueError(f"counts of shape {values.shape}; expected (items, counts) and at least one item")
    return values
