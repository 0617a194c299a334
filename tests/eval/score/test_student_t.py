"""Student's t against the printed table and against SciPy."""

from __future__ import annotations

import random

import pytest
from scipy import stats

from eval.score.student_t import quantile, two_sided_p


def test_quantiles_are_those_of_the_printed_table() -> None:
    # Two-sided 95 %: every textbook's table.
    assert [round(quantile(0.95, freedom), 3) for freedom in (1, 2, 3, 4, 10, 30)] == [
        12.706, 4.303, 3.182, 2.776, 2.228, 2.042,
    ]  # fmt: skip


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 8, 9, 40, 101])
def test_quantiles_are_scipys(freedom: int) -> None:
    for level in (0.0, 0.1, 0.5, 0.9, 0.95, 0.999):
        assert quantile(level, freedom) == pytest.approx(stats.t.ppf((1 + level) / 2, freedom), rel=1e-9, abs=1e-12)


def test_p_values_are_those_of_scipys_test() -> None:
    draw = random.Random(0)
    for count in (2, 3, 4, 5, 9, 10, 60):
        for mean in (0.0, 0.3, -2.0, 20.0):
            values = [draw.gauss(mean, 1) for _ in range(count)]
            assert two_sided_p(values) == pytest.approx(stats.ttest_1samp(values, 0).pvalue, rel=1e-8, abs=1e-13)
