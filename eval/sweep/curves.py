"""Accuracy during training as curves over seeds, and each way of training and decoding compared with the reference.

Runs are paired by seed: intervals and p-values are those of a paired t-test over seeds (Student 1908), corrected for
all ways of one table (Holm 1979).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from eval.score.statistics import LEVEL, Difference, Interval, holm
from eval.sweep.rows import WITHOUT_CONTEXT, Row
from eval.sweep.spec import SEED

ACCURACIES = ("aligned", "conflict")
PLAIN = "plain"


@dataclass(frozen=True)
class Way:
    """The values of all axes but the seed, as the rows have them, and a decoder."""

    values: tuple[tuple[str, Any], ...]
    decoder: str

    def name(self, axes: Sequence[str]) -> str:
        """Return the values of these axes, and the decoder unless it is plain."""
        values = dict(self.values)
        parts = [str(values[axis]) for axis in axes]
        return ", ".join(parts) + ("" if self.decoder == PLAIN else f" ({self.decoder})")


@dataclass(frozen=True)
class Curve:
    """One run of a way: its rows in the order of steps."""

    seed: Any
    rows: list[Row]

    def at(self, key: str, basis: str, where: float) -> float:
        """Return the value of `key` where `basis` (`step`, `cpu_seconds`) is `where`, interpolated linearly."""
        return float(np.interp(where, self.column(basis), self.column(key)))

    def mean(self, key: str, basis: str, where: float) -> float:
        """Return the mean of `key` over `basis` from the first row to `where`."""
        x, y = self.column(basis), self.column(key)
        inner = x < where
        x, y = np.append(x[inner], where), np.append(y[inner], self.at(key, basis, where))
        width = x[-1] - x[0]
        return float(np.trapezoid(y, x) / width) if width > 0 else float(y[0])

    def column(self, key: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        return np.array([row[key] for row in self.rows], dtype=np.float64)

    @property
    def last(self) -> Row:
        return self.rows[-1]


def ways(rows: Iterable[Row], axes: Sequence[str]) -> dict[Way, list[Curve]]:
    """Return the curves of each way, one per seed."""
    found: dict[Way, dict[Any, list[Row]]] = {}
    for row in rows:
        way = Way(tuple((axis, row[axis]) for axis in axes if axis != SEED), row["decoder"])
        found.setdefault(way, {}).setdefault(row[SEED], []).append(row)
    return {
        way: [Curve(seed, sorted(rows, key=lambda row: row["step"])) for seed, rows in sorted(seeds.items())]
        for way, seeds in found.items()
    }


def accuracies(curves: Iterable[Curve]) -> list[str]:
    """Return the accuracies that the rows of all curves have: of both subsets, and of those of further datasets."""
    ends = [curve.last for curve in curves]
    return [key for key in ends[0] if key.startswith(ACCURACIES) and all(key in end for end in ends)]


def over_seeds(values: Sequence[float]) -> Interval:
    """Return the mean over seeds with its t interval; for one seed the interval is the value."""
    found = paired(values)
    return Interval(found.mean, *((found.low, found.high) if len(values) > 1 else (found.mean, found.mean)))


def averaged(curves: Sequence[Curve], key: str) -> list[tuple[int, Interval, int]]:
    """Return (step, mean over seeds, number of seeds) for each step."""
    values: dict[int, list[float]] = {}
    for row in (row for curve in curves for row in curve.rows):
        values.setdefault(row["step"], []).append(row[key])
    return [(step, over_seeds(own), len(own)) for step, own in sorted(values.items())]


@dataclass(frozen=True)
class Contrast:
    """A way compared with its reference, over the seeds that both have.

    Attributes:
        at_end: Subset → difference at equal compute, at the end of the shorter of the two runs.
        after_training: Subset → difference where both have ended; so at equal steps. Also of further datasets.
        over_curve: Subset → difference between the means over the curves up to there.
        cost: Compute per step, as a multiple of the reference's.
    """

    way: Way
    seeds: int
    at_end: dict[str, Difference]
    after_training: dict[str, Difference]
    over_curve: dict[str, Difference]
    cost: float

    @property
    def verdict(self) -> str:
        """Return `better`, `worse` (conflict accuracy over the curve, corrected p), `not decided` or `one seed`."""
        if self.seeds < 2:
            return "one seed"
        conflict = self.over_curve["conflict"]
        if not conflict.significant:
            return "not decided"
        return "better" if conflict.mean > 0 else "worse"


def contrasts(
    found: Mapping[Way, Sequence[Curve]], reference: Mapping[str, Any], *, basis: str = "cpu_seconds"
) -> list[Contrast]:
    """Compare each way with the plainly decoded reference; Holm's correction covers all ways of several seeds.

    Args:
        reference: axis → value; for axes that it does not name, the reference has the way's own value.
        basis: equal compute means equal `cpu_seconds`, `seconds` or `step`.
    """
    made: list[Contrast] = []
    for way, curves in found.items():
        base = Way(tuple((axis, reference.get(axis, value)) for axis, value in way.values), PLAIN)
        if way.decoder == WITHOUT_CONTEXT or way == base or base not in found:
            continue
        by_seed = {curve.seed: curve for curve in found[base]}
        pairs = [(by_seed[curve.seed], curve) for curve in curves if curve.seed in by_seed]
        if pairs:
            made.append(_contrast(way, pairs, basis))
    return _corrected(made)


def _contrast(way: Way, pairs: Sequence[tuple[Curve, Curve]], basis: str) -> Contrast:
    limits = [min(first.last[basis], second.last[basis]) for first, second in pairs]

    def differences(measure: Callable[[Curve, str, float], float]) -> dict[str, Difference]:
        ends = list(zip(pairs, limits, strict=True))
        return {
            key: paired([measure(way, key, limit) - measure(base, key, limit) for (base, way), limit in ends])
            for key in ACCURACIES
        }

    ends = {
        key: paired([second.last[key] - first.last[key] for first, second in pairs])
        for key in accuracies([curve for pair in pairs for curve in pair])
    }
    costs = [
        (second.last["cpu_seconds"] / second.last["step"]) / (first.last["cpu_seconds"] / first.last["step"])
        for first, second in pairs
        if first.last["step"] and second.last["step"] and first.last["cpu_seconds"]
    ]
    return Contrast(
        way,
        len(pairs),
        differences(lambda curve, key, limit: curve.at(key, basis, limit)),
        ends,
        differences(lambda curve, key, limit: curve.mean(key, basis, limit)),
        float(np.median(costs)) if costs else math.nan,
    )


def paired(changes: Sequence[float]) -> Difference:
    """Return the mean of paired differences with its t interval and p; for one pair the interval is infinite."""
    mean = float(np.mean(changes))
    if len(changes) < 2:
        return Difference(mean, -math.inf, math.inf, 1.0)
    if np.ptp(changes) < 1e-9:  # the same for every seed, so no variance to test against: p of a sign-flip test
        return Difference(mean, mean, mean, 1.0 if abs(mean) < 1e-9 else 2.0 ** (1 - len(changes)))
    from scipy.stats import ttest_1samp

    test = ttest_1samp(changes, 0)
    bounds = test.confidence_interval(LEVEL)
    return Difference(mean, float(bounds.low), float(bounds.high), float(test.pvalue))


def _corrected(made: list[Contrast]) -> list[Contrast]:
    """Correct the p-values for all ways that were tested; a single seed is no test."""
    tested = [one for one in made if one.seeds > 1]
    for measured in ("at_end", "after_training", "over_curve"):
        differences: list[dict[str, Difference]] = [getattr(one, measured) for one in tested]
        for key in dict.fromkeys(key for own in differences for key in own):
            having = [own for own in differences if key in own]
            for own, change in zip(having, holm([own[key] for own in having]), strict=True):
                own[key] = change
    return made
