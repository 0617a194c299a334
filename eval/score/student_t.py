"""Student's t distribution for a test over a few seeds, without SciPy (110 MB) for the two functions of it.

For whole degrees of freedom the distribution function is a finite sum of powers of a cosine
(Abramowitz and Stegun 1964, 26.7.3 and 26.7.4), exact up to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import atan, cos, pi, sin, sqrt, tan

import numpy as np

_HALVINGS = 100  # more than a float64 has bits


def two_sided_p(values: Sequence[float]) -> float:
    """The p-value of a one-sample t-test (Student 1908) of the mean of the values being 0.

    Args:
        values: at least two, not all the same.
    """
    t = float(np.mean(values)) / (float(np.std(values, ddof=1)) / sqrt(len(values)))
    freedom = len(values) - 1
    return max(0.0, 1 - _mass(atan(abs(t) / sqrt(freedom)), freedom))


def quantile(level: float, freedom: int) -> float:
    """The t that the absolute value of a draw stays below with probability `level`.

    Args:
        level: from 0 to below 1.
        freedom: degrees of freedom, from 1 on.
    """
    low, high = 0.0, pi / 2
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _mass(middle, freedom) < level else (low, middle)
    return sqrt(freedom) * tan(low)


def _mass(angle: float, freedom: int) -> float:
    """Probability of |T| < t, where `angle` is atan(t / √freedom)."""
    odd = freedom % 2
    term = cos(angle) if odd else 1.0
    total = term if freedom > 1 else 0.0
    for power in range(2 + odd, freedom - 1, 2):
        term *= cos(angle) ** 2 * (power - 1) / power
        total += term
    return (angle + sin(angle) * total) * 2 / pi if odd else sin(angle) * total
