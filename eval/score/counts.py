"""Intervals and paired tests of scores that are functions of counts, such as F1.

Each item (a question, a procedure) has counts, counts add up over items, and the score is a function of the sums. The
bootstrap draws items and adds up their counts. The paired test is approximate randomisation (Noreen 1989; Yeh 2000):
if two systems do not differ, the counts of an item may be swapped. For a share this is the sign-flip test of
`eval.score.statistics`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from eval.score.statistics import (
    LEVEL,
    PERMUTATIONS,
    RESAMPLES,
    Difference,
    Interval,
    bootstrap_average,
    exact_change,
    exact_interval,
)

_Floats = NDArray[np.float64]
_ELEMENTS = 8_000_000  # random numbers held in memory together


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
    "f1": f1,
    "macro_f1": macro_f1,
    "macro_f1_all": macro_f1_all,
}


def score_of(form: str, counts: ArrayLike) -> float | None:
    """Return the score of all items' counts, (N, K); None if there is nothing to divide by."""
    value = float(FORMS[form](_checked(counts).sum(axis=0)))
    return None if np.isnan(value) else value


def bootstrap_counts(form: str, counts: ArrayLike, *, seed: int = 0, resamples: int = RESAMPLES) -> Interval:
    """Return the score of the items' counts (N, K) with its percentile bootstrap interval over items.

    Resamples that have nothing to divide by are left out. A share with a total of 1 for each item is a proportion, and
    its interval that of `bootstrap_average`. A score of 0 or 1 has the exact interval of a proportion of the items.

    Raises:
        ValueError: there is no item, or the score is undefined.
    """
    own = _checked(counts)
    if form == "share" and bool((own[:, 1] == 1).all()):
        return bootstrap_average([own[:, 0]], seed=seed, resamples=resamples)
    distinct, times = np.unique(own, axis=0, return_counts=True)
    score, drawn = _defined(form, own), FORMS[form](_drawn_sums(distinct, times, seed, resamples))
    return _interval(score, drawn) or exact_interval([(1, score, len(own))])


def paired_counts(
    form: str,
    first: ArrayLike,
    second: ArrayLike,
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
    permutations: int = PERMUTATIONS,
) -> Difference:
    """Return `score(second) − score(first)` of N items, with its paired bootstrap interval and two-sided p-value.

    Args:
        first: (N, K) counts of one system; `second` those of the other, in the same order.

    Raises:
        ValueError: the two differ in shape, there is no item, or a score is undefined.
    """
    before, after = _checked(first), _checked(second)
    if before.shape != after.shape:
        raise ValueError(f"paired counts of different shapes: {before.shape} and {after.shape}")
    function = FORMS[form]
    observed = _defined(form, after) - _defined(form, before)
    pairs, times = np.unique(np.concatenate([before, after], axis=1), axis=0, return_counts=True)  # (D, 2K), (D,)
    width = before.shape[1]
    sums = _drawn_sums(pairs, times, seed, resamples)  # (R, 2K)
    drawn = function(sums[:, width:]) - function(sums[:, :width])
    interval = _interval(observed, drawn) or exact_change([np.full(len(before), observed)])
    moved, totals = pairs[:, width:] - pairs[:, :width], (before.sum(axis=0), after.sum(axis=0))
    rng, as_extreme = np.random.default_rng(seed), 0
    for rows in _parts(permutations, len(pairs)):
        shift = rng.binomial(times, 0.5, size=(rows, len(pairs))) @ moved  # (r, K): what passes from one to the other
        differences = function(totals[1] - shift) - function(totals[0] + shift)
        # Where a swap leaves one without anything to divide by, it counts against a difference.
        as_extreme += int(np.count_nonzero(~(np.abs(differences) < abs(observed) - 1e-12)))
    return Difference(**vars(interval), p_value=(1 + as_extreme) / (1 + permutations))


def _drawn_sums(distinct: _Floats, times: NDArray[Any], seed: int, resamples: int) -> _Floats:
    """Return the sums (R, K) of items drawn with replacement; many items have the same counts."""
    rng, items = np.random.default_rng(seed), int(times.sum())
    parts = (rng.multinomial(items, times / items, size=rows) @ distinct for rows in _parts(resamples, len(distinct)))
    return np.concatenate(list(parts))


def _parts(rows: int, width: int) -> Iterator[int]:
    most = max(1, _ELEMENTS // width)
    yield from (min(most, rows - start) for start in range(0, rows, most))


def _interval(observed: float, values: _Floats) -> Interval | None:
    """The percentile interval of resampled values; None if they are all equal."""
    defined = values[~np.isnan(values)]
    if not defined.size or defined.min() == defined.max():
        return None
    low, high = np.quantile(defined, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(observed, float(low), float(high))


def _defined(form: str, counts: _Floats) -> float:
    value = score_of(form, counts)
    if value is None:
        raise ValueError(f"the {form} of {len(counts)} items has nothing to divide by")
    return value


def _checked(counts: ArrayLike) -> _Floats:
    values = np.asarray(counts, dtype=np.float64)
    if values.ndim != 2 or not len(values):
        raise ValueError(f"counts of shape {values.shape}; expected (items, counts) and at least one item")
    return values
