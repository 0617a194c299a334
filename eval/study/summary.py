"""What a study shows: curves averaged over seeds, and each way of training and decoding against the reference.

Seeds are the units: a difference is that of two runs of one seed, its interval and p-value those of a paired t-test
over seeds (Student 1908), corrected for all ways that stand in one table (Holm 1979).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from eval.score.statistics import LEVEL, Difference, Interval, holm
from eval.study.rows import WITHOUT_CONTEXT, Row
from eval.study.study import SEED

ACCURACIES = ("aligned", "conflict")
PLAIN = "plain"


@dataclass(frozen=True)
class Way:
    """A combination without its seed, decoded in one way; `values` are as the rows have them."""

    values: tuple[tuple[str, Any], ...]
    decoder: str

    def name(self, axes: Sequence[str]) -> str:
        """The values of these axes, and the decoder where it is not plain."""
        of = dict(self.values)
        parts = [str(of[axis]) for axis in axes]
        return ", ".join(parts) + ("" if self.decoder == PLAIN else f" ({self.decoder})")


@dataclass(frozen=True)
class Curve:
    """One run of a way: its rows in the order of steps."""

    seed: Any
    rows: list[Row]

    def at(self, key: str, basis: str, where: float) -> float:
        """The value of `key` where `basis` (`step`, `cpu_seconds`) is so much, on the line between two rows."""
        return float(np.interp(where, self.of(basis), self.of(key)))

    def mean(self, key: str, basis: str, where: float) -> float:
        """The mean of `key` over `basis` from the first row to there."""
        x, y = self.of(basis), self.of(key)
        inner = x < where
        x, y = np.append(x[inner], where), np.append(y[inner], self.at(key, basis, where))
        width = x[-1] - x[0]
        return float(np.trapezoid(y, x) / width) if width > 0 else float(y[0])

    def of(self, key: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        """All values of a column."""
        return np.array([row[key] for row in self.rows], dtype=np.float64)

    @property
    def last(self) -> Row:
        return self.rows[-1]


def ways(rows: Iterable[Row], axes: Sequence[str]) -> dict[Way, list[Curve]]:
    """The curves of each way, a curve a seed, in the order of the rows."""
    found: dict[Way, dict[Any, list[Row]]] = {}
    for row in rows:
        way = Way(tuple((axis, row[axis]) for axis in axes if axis != SEED), row["decoder"])
        found.setdefault(way, {}).setdefault(row[SEED], []).append(row)
    return {
        way: [Curve(seed, sorted(of_seed, key=lambda row: row["step"])) for seed, of_seed in sorted(seeds.items())]
        for way, seeds in found.items()
    }


def over_seeds(values: Sequence[float]) -> Interval:
    """The mean over seeds with its t interval; of one seed the interval is the value."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return Interval(mean, mean, mean)
    half = _half_width(values)
    return Interval(mean, mean - half, mean + half)


def averaged(curves: Sequence[Curve], key: str) -> list[tuple[int, Interval, int]]:
    """(step, mean over seeds, number of seeds) at each step that a row was measured at."""
    steps = sorted({row["step"] for curve in curves for row in curve.rows})
    found = []
    for step in steps:
        values = [row[key] for curve in curves for row in curve.rows if row["step"] == step]
        found.append((step, over_seeds(values), len(values)))
    return found


@dataclass(frozen=True)
class Contrast:
    """A way against the reference of its setting, over the seeds that both have.

    Attributes:
        seeds: how many.
        end: subset → accuracy of the way at its last step.
        at_end: subset → difference at equal compute, at the end of the shorter of the two runs.
        over_curve: subset → difference of the mean over the curves, up to there.
        cost: compute of a step, as a multiple of the reference's.
    """

    way: Way
    seeds: int
    end: dict[str, Interval]
    at_end: dict[str, Difference]
    over_curve: dict[str, Difference]
    cost: float

    @property
    def verdict(self) -> str:
        """By conflict accuracy over the curve, corrected: `reads more`, `reads less`, `not decided`, or `one seed`."""
        if self.seeds < 2:
            return "one seed"
        conflict = self.over_curve["conflict"]
        if not conflict.significant:
            return "not decided"
        return "reads more" if conflict.mean > 0 else "reads less"


def contrasts(
    found: Mapping[Way, Sequence[Curve]], reference: Mapping[str, Any], *, basis: str = "cpu_seconds"
) -> list[Contrast]:
    """Each way against the reference of its setting, decoded plainly; Holm's correction is over all that are returned.

    Args:
        reference: axis → value; the axes that it does not name are the setting.
        basis: what is held equal: `cpu_seconds`, `seconds` or `step`.
    """
    made: list[Contrast] = []
    for way, curves in found.items():
        of = Way(tuple((axis, reference.get(axis, value)) for axis, value in way.values), PLAIN)
        if way.decoder == WITHOUT_CONTEXT or way == of or of not in found:
            continue
        by_seed = {curve.seed: curve for curve in found[of]}
        pairs = [(by_seed[curve.seed], curve) for curve in curves if curve.seed in by_seed]
        if pairs:
            made.append(_contrast(way, pairs, basis))
    return _corrected(made)


def _contrast(way: Way, pairs: Sequence[tuple[Curve, Curve]], basis: str) -> Contrast:
    limits = [min(first.last[basis], second.last[basis]) for first, second in pairs]

    def difference(measure: Callable[[Curve, float], float]) -> Difference:
        changes = [
            measure(second, limit) - measure(first, limit)
            for (first, second), limit in zip(pairs, limits, strict=True)
        ]
        return paired(changes)

    costs = [
        (second.last["cpu_seconds"] / second.last["step"]) / (first.last["cpu_seconds"] / first.last["step"])
        for first, second in pairs
        if first.last["step"] and second.last["step"] and first.last["cpu_seconds"]
    ]
    return Contrast(
        way,
        len(pairs),
        {key: over_seeds([second.last[key] for _, second in pairs]) for key in ACCURACIES},
        {key: difference(lambda curve, x, key=key: curve.at(key, basis, x)) for key in ACCURACIES},  # type: ignore[misc]
        {key: difference(lambda curve, x, key=key: curve.mean(key, basis, x)) for key in ACCURACIES},  # type: ignore[misc]
        float(np.median(costs)) if costs else math.nan,
    )


def paired(changes: Sequence[float]) -> Difference:
    """The mean of paired differences with its t interval and p; of one pair nothing is known but the difference."""
    mean = float(np.mean(changes))
    if len(changes) < 2:
        return Difference(mean, -math.inf, math.inf, 1.0)
    half = _half_width(changes)
    if half == 0:  # the same in every seed, so no variance to test against: the p of a sign-flip test
        return Difference(mean, mean, mean, 1.0 if mean == 0 else 2.0 ** (1 - len(changes)))
    from scipy.stats import ttest_1samp

    return Difference(mean, mean - half, mean + half, float(ttest_1samp(changes, 0).pvalue))


def _half_width(values: Sequence[float]) -> float:
    from scipy.stats import sem, t

    return float(t.ppf((1 + LEVEL) / 2, len(values) - 1) * sem(values))


def _corrected(made: Sequence[Contrast]) -> list[Contrast]:
    """With p corrected for all ways that were tested; of one seed there is no test."""
    tested = [one for one in made if one.seeds > 1]
    at_end = {key: holm([one.at_end[key] for one in tested]) for key in ACCURACIES}
    over_curve = {key: holm([one.over_curve[key] for one in tested]) for key in ACCURACIES}
    corrected = {
        one.way: replace(
            one,
            at_end={key: at_end[key][i] for key in ACCURACIES},
            over_curve={key: over_curve[key][i] for key in ACCURACIES},
        )
        for i, one in enumerate(tested)
    }
    return [corrected.get(one.way, one) for one in made]
