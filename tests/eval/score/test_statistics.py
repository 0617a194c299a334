"""Intervals and tests against enumeration, the normal approximation, SciPy and scikit-learn."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn.metrics import f1_score

from eval.score.statistics import (
    FORMS,
    Interval,
    bootstrap_average,
    bootstrap_counts,
    bootstrap_ratio,
    holm,
    paired_average,
    paired_counts,
    score_of,
)


def share(right: int, of: int) -> list[float]:
    return [1.0] * right + [0.0] * (of - right)


def gap(first: Any, second: Any, **options: Any) -> Interval:
    """The difference of two groups of other samples."""
    return bootstrap_average([first, second], weights=(1, -1), **options)


# Each sample has one of the two or neither; of the 800 that have one, 200 have the part: as a share of 200 in 800.
PART, REST = share(200, 1200), [0.0] * 200 + share(600, 1000)


@pytest.mark.parametrize(
    ("resample", "scores", "mean", "variance"),
    [
        (bootstrap_average, [[share(300, 1000)]], 0.3, 0.3 * 0.7 / 1000),
        # An average weighs groups alike, and its variance is that of their means.
        (bootstrap_average, [[share(90, 300), share(600, 1000)]], 0.45, (0.3 * 0.7 / 300 + 0.6 * 0.4 / 1000) / 4),
        (gap, [share(270, 300), share(250, 500)], 0.4, 0.9 * 0.1 / 300 + 0.5 * 0.5 / 500),
        (bootstrap_ratio, [[PART], [REST]], 0.25, 0.25 * 0.75 / 800),
    ],
)
def test_intervals_agree_with_the_normal_approximation(
    resample: Any, scores: list[list[list[float]]], mean: float, variance: float
) -> None:
    found, half = resample(*scores, resamples=20_000), 1.96 * math.sqrt(variance)
    assert found.mean == pytest.approx(mean)
    assert (found.low, found.high) == pytest.approx((mean - half, mean + half), abs=0.004)


def test_many_samples_have_the_interval_of_a_percentile_bootstrap() -> None:
    values = np.random.default_rng(1).beta(2, 1, size=1_000)
    rng = np.random.default_rng(2)
    naive = [rng.choice(values, size=values.size).mean() for _ in range(20_000)]
    interval = bootstrap_average([values], resamples=20_000)
    assert interval.low == pytest.approx(np.quantile(naive, 0.025), abs=0.002)
    assert interval.high == pytest.approx(np.quantile(naive, 0.975), abs=0.002)


def test_scores_that_repeat_are_resampled_as_those_that_do_not() -> None:
    # Nearly equal values: the first are drawn by their counts, the second one by one.
    values = np.repeat(np.random.default_rng(1).beta(2, 1, size=10), 30)
    apart = values + np.linspace(0, 1e-9, values.size)
    ours, theirs = (bootstrap_average([scores], resamples=20_000) for scores in (values, apart))
    assert ours.low == pytest.approx(theirs.low, abs=0.002)
    assert ours.high == pytest.approx(theirs.high, abs=0.002)
    gains = [paired_average([np.zeros(300)], [scores - values.mean() + 0.02]) for scores in (values, apart)]
    assert 0.02 < gains[0].p_value < 0.98
    assert gains[0].p_value == pytest.approx(gains[1].p_value, abs=0.03)


def test_a_bound_takes_one_more_sample_at_the_end_of_the_scale() -> None:
    # Weights of a half, the end and 0 are the gaps of two uniform draws; P(W₁/2 + W₂ ≤ x) integrates to these bounds.
    uniform = np.sort(np.random.default_rng(3).random((400_000, 2)), axis=1)
    gaps = np.diff(uniform, axis=1, prepend=0, append=1)  # (R, 3)
    interval = bootstrap_average([[0.0, 0.5]], resamples=100_000)
    assert interval.low == pytest.approx(np.quantile(gaps[:, 0] / 2, 0.025), abs=0.005)
    assert interval.high == pytest.approx(np.quantile(gaps[:, 0] / 2 + gaps[:, 1], 0.975), abs=0.005)


@pytest.mark.parametrize(("right", "of"), [(1, 1), (0, 1), (3, 3), (7, 24), (40, 40), (0, 300), (300, 300), (61, 200)])
def test_proportions_have_exact_intervals(right: int, of: int) -> None:
    found, known = bootstrap_average([share(right, of)]), binomtest(right, of).proportion_ci()
    assert (found.mean, found.low, found.high) == pytest.approx((right / of, known.low, known.high))


def test_equal_scores_between_0_and_1_have_an_interval_too() -> None:
    one, many = bootstrap_average([[0.335]]), bootstrap_average([[0.335] * 90])
    assert 0 <= one.low < many.low < 0.335 < many.high < one.high <= 1


def test_a_small_group_of_equal_scores_widens_the_interval_of_an_average() -> None:
    small, large = [0.0] * 3, [0.5, 0.25] * 50
    alone = bootstrap_average([small])
    both = bootstrap_average([small, large])
    assert both.high - both.mean > 0.9 * alone.high / 2, "half of what the small group may be off"
    assert gap(large, small).low < 0.375 - 0.9 * alone.high
    change = paired_average([small, large], [small, [one + 0.1 for one in large]])
    assert change.low < 0 < change.high


# Scores and their probabilities; the percentile bootstrap covers 79 to 90 % of these.
FRACTIONAL = (0, 0.25, 0.4, 0.5, 0.67, 0.8, 1), (0.05, 0.1, 0.2, 0.25, 0.2, 0.1, 0.1)
ZERO_INFLATED = (0, 0.3, 0.5, 1), (0.9, 0.04, 0.03, 0.03)


@pytest.mark.parametrize(
    ("own", "sizes"), [(FRACTIONAL, [3]), (ZERO_INFLATED, [8] * 4), (ZERO_INFLATED, [3] * 15), (FRACTIONAL, [3, 50])]
)
def test_intervals_of_few_samples_cover_what_they_say(own: Any, sizes: list[int]) -> None:
    rng, truth, found = np.random.default_rng(1), float(np.dot(*own)), []
    for _ in range(300):
        drawn = [rng.choice(np.array(own[0]), p=own[1], size=size) for size in sizes]
        interval = bootstrap_average(drawn, resamples=500)
        change = paired_average([np.zeros(size) for size in sizes], drawn, permutations=100)
        found.append([one.low - 1e-9 <= truth <= one.high + 1e-9 for one in (interval, change)])
    assert (np.mean(found, axis=0) >= 0.93).all()


@pytest.mark.parametrize(("rose", "fell"), [(5, 0), (6, 0), (7, 1), (8, 1), (14, 5), (16, 5)])
def test_a_difference_leaves_out_0_where_its_test_finds_one(rose: int, fell: int) -> None:
    change = [1.0] * rose + [-1.0] * fell + [0.0] * 60
    found = paired_average([np.zeros(len(change))], [change])
    p = binomtest(rose, rose + fell).pvalue
    assert found.p_value == pytest.approx(p, abs=0.02)
    assert (found.low > 0) == (p < 0.05)


@pytest.mark.parametrize("of", [1, 60, 122])
def test_equal_answers_may_differ_as_often_as_the_exact_bound_of_none_says(of: int) -> None:
    most = 1 - 0.025 ** (1 / of)  # none of n samples changed
    same = paired_average([share(1, of)], [share(1, of)])
    assert (same.mean, same.low, same.high, same.p_value) == pytest.approx((0, -most, most, 1))
    all_fixed = paired_average([share(0, of)], [share(of, of)])
    assert (all_fixed.mean, all_fixed.low, all_fixed.high) == pytest.approx((1, 1 - 2 * most, 1))


def test_a_loss_has_the_sign_of_second_minus_first_and_pairing_finds_a_small_gain() -> None:
    assert paired_average([[1.0, 1.0]], [[0.0, 0.0]]).mean == -1.0
    first, second = share(50, 100), share(58, 100)  # 8 of 100 fixed, none broken
    gain = paired_average([first], [second])
    assert gain.mean == pytest.approx(0.08)
    assert gain.significant
    assert 0 < gain.low < binomtest(8, 100).proportion_ci().low, "some may have been broken"
    assert bootstrap_average([first]).high > bootstrap_average([second]).low


@pytest.mark.parametrize(
    ("change", "exact"),
    [
        ([1.0] * 5, 2 / 32),  # only all plus and all minus are as extreme
        ([1.0] * 4 + [-1.0], 12 / 32),  # |sum| ≥ 3: at most one or at least four minus signs
        ([1.0, 2.0, 0.0], 1 / 2),  # sums ±3, ±1; the zero changes nothing
    ],
)
def test_the_p_value_agrees_with_all_sign_flips_counted(change: list[float], exact: float) -> None:
    found = paired_average([[0.0] * len(change)], [change], permutations=40_000)
    assert found.p_value == pytest.approx(exact, abs=0.01)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bootstrap_average([[]]), r"shape \(0,\)"),
        (lambda: bootstrap_average([]), "no group"),
        (lambda: paired_average([[0, 1]], [[0, 1, 1]]), "2 and 3"),
        (lambda: paired_average([[1.0]], [[1.0], [0.0]]), "longer"),
        (lambda: bootstrap_counts("share", []), r"expected \(items, counts\)"),
        (lambda: bootstrap_counts("share", [1.0, 2.0]), r"expected \(items, counts\)"),
        (lambda: paired_counts("share", [(1, 1)], [(1, 1), (0, 1)]), "different shapes"),
        (lambda: paired_counts("share", [(0, 0)], [(1, 1)]), "nothing to divide by"),
    ],
)
def test_scores_that_cannot_be_averaged_or_paired_are_refused(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_the_p_value_of_an_average_agrees_with_all_sign_flips_counted() -> None:
    # Group means (±1 ± 1 ± 1)/3 and (±1 ± 1)/2 averaged; observed (1 + 0)/2.
    first, second = [[0.0] * 3, [0.0] * 2], [[1.0] * 3, [1.0, -1.0]]
    flips = [
        abs((a + b + c) / 3 + (d + e) / 2) / 2
        for a in (1, -1) for b in (1, -1) for c in (1, -1) for d in (1, -1) for e in (1, -1)
    ]  # fmt: skip
    found = paired_average(first, second, permutations=40_000)
    assert found.mean == pytest.approx(0.5)
    assert found.p_value == pytest.approx(sum(flip >= 0.5 - 1e-9 for flip in flips) / 32, abs=0.01)


def test_holm_multiplies_by_the_number_of_hypotheses_left_and_keeps_the_order() -> None:
    # sorted: 0.01·4, 0.02·3, 0.03·2 = 0.06, 0.04·1 lifted to 0.06
    assert holm([0.03, 0.01, 0.04, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.6, 0.9]) == pytest.approx([1, 1])
    assert not holm([]).size


def test_a_ratio_of_nothing_is_none_and_resamples_without_either_are_left_out() -> None:
    assert bootstrap_ratio([[0.0, 0.0]], [[0.0, 0.0]]) is None
    ratio = bootstrap_ratio([[1.0, 0.0]], [[0.0, 0.0]])
    assert (ratio.mean, ratio.low, ratio.high) == pytest.approx((1.0, 0.025, 1.0)), "one sample has either"


def test_macro_f1_of_confusion_matrices_is_scikit_learns() -> None:
    rng = np.random.default_rng(1)
    for _ in range(20):
        gold, found = rng.integers(0, 3, size=(2, rng.integers(1, 9)))
        confusion = np.zeros((3, 3), dtype=np.int64)
        np.add.at(confusion, (gold, found), 1)
        assert score_of("macro_f1", [confusion.ravel()]) == pytest.approx(f1_score(gold, found, average="macro"))
        every = f1_score(gold, found, labels=[0, 1, 2], average="macro", zero_division=0)
        assert score_of("macro_f1_all", [confusion.ravel()]) == pytest.approx(every)


def test_f1_is_of_summed_counts() -> None:
    # 3 of 4 predictions are right, 2 of 5 gold items found: 2 · 0.75 · 0.4 / 1.15
    assert score_of("f1", [(1, 1, 2, 1), (3, 2, 3, 1)]) == pytest.approx(0.6 / 1.15)
    assert score_of("f1", [(0, 0, 2, 0)]) == 0
    assert score_of("share", [(0, 0)]) is None


@pytest.mark.parametrize("form", FORMS)
def test_the_p_value_is_that_of_all_swaps(form: str) -> None:
    rng = np.random.default_rng(5)
    width = {"share": 2, "correlation": 2, "f1": 4}.get(form, 9)
    first, second = rng.integers(1, 5, size=(2, 6, width)).astype(float)
    if width < 9:
        first, second = np.sort(first), np.sort(second)  # not more right than there are
    observed = abs(score_of(form, second) - score_of(form, first))
    hits = []
    for swap in itertools.product((False, True), repeat=6):
        chosen = np.array(swap)[:, None]
        one, other = np.where(chosen, second, first), np.where(chosen, first, second)
        hits.append(abs(score_of(form, other) - score_of(form, one)) >= observed - 1e-12)
    found = paired_counts(form, first, second)
    assert found.mean == pytest.approx(score_of(form, second) - score_of(form, first))
    assert found.p_value == pytest.approx(np.mean(hits), abs=0.02)
    assert found.low <= found.mean <= found.high


def test_correlations_reach_from_minus_1_to_1_and_their_differences_to_2() -> None:
    low, high = ([(value, 1) for value in values] for values in ([-0.4, -0.3, -0.2, -0.5], [0.9, 0.8, 0.95, 0.85]))
    interval, difference = bootstrap_counts("correlation", low), paired_counts("correlation", low, high)
    assert -1 <= interval.low < interval.mean < interval.high < 0.9
    assert interval.mean == pytest.approx(-0.35)
    assert difference.low < difference.mean == pytest.approx(1.225)
    assert 1.225 < difference.high <= 2


def test_of_a_share_it_is_the_sign_flip_test_and_the_bootstrap_of_a_mean() -> None:
    rng = np.random.default_rng(2)
    one, other = rng.random(60) < 0.4, rng.random(60) < 0.6
    counts = [np.stack([hits, np.ones(60)], axis=1) for hits in (one, other)]
    known, found = paired_average([one], [other]), paired_counts("share", *counts)
    assert found.mean == pytest.approx(known.mean)
    assert (found.low, found.high) == (known.low, known.high)
    assert found.p_value == pytest.approx(known.p_value, abs=0.02)
    plain, own = bootstrap_average([one]), bootstrap_counts("share", counts[0])
    assert (own.mean, own.low, own.high) == (plain.mean, plain.low, plain.high)
    doubled = np.stack([other, 2 * np.ones(60)], axis=1)
    known, found = bootstrap_average([other * 0.5]), bootstrap_counts("share", doubled)
    assert (found.low, found.high) == pytest.approx((known.low, known.high), abs=0.02), "totals of 2 do not matter"


def test_equal_results_do_not_differ() -> None:
    counts = np.random.default_rng(3).integers(0, 4, size=(30, 9))
    found = paired_counts("macro_f1", counts, counts)
    most = 1 - 0.025 ** (1 / 30)
    assert (found.mean, found.low, found.high, found.p_value) == pytest.approx((0, -most, most, 1))


def test_items_without_a_total_do_not_count() -> None:
    empty = [(0.0, 0.0)] * 2
    assert bootstrap_counts("share", [(2, 2), *empty]) == bootstrap_counts("share", [(2, 2)])
    both, known = bootstrap_counts("share", [(1, 2), (2, 2), *empty]), bootstrap_average([[0.5, 1.0]])
    assert (both.low, both.high) == pytest.approx((known.low, known.high), abs=0.03)


@pytest.mark.parametrize("form", ["share", "f1", "macro_f1"])
def test_intervals_of_few_items_cover_what_they_say(form: str) -> None:
    # Items of unequal size and difficulty, of which percentile bootstrap intervals cover fewer than 90 %.
    rng, found = np.random.default_rng(1), []

    def drawn(items: int, right: float) -> Any:
        totals, rates = rng.geometric(0.25, size=items), rng.beta(2 * right, 2 * (1 - right), size=items)
        hits, none = rng.binomial(totals, rates), np.zeros(items)
        columns = {"share": [hits, totals], "f1": [totals, hits, totals, hits]}
        columns["macro_f1"] = [hits - hits // 2, totals - hits, none, hits // 2]
        return np.stack(columns[form], axis=1).astype(float)

    before, after = (score_of(form, drawn(100_000, right)) for right in (0.9, 0.93))
    for _ in range(200):
        first, second = drawn(8, 0.9), drawn(8, 0.93)
        score, change = bootstrap_counts(form, second), paired_counts(form, first, second, permutations=1)
        found.append([score.low <= after <= score.high, change.low <= after - before <= change.high])
    assert (np.mean(found, axis=0) >= 0.93).all()


def test_a_perfect_score_has_the_exact_interval_of_its_items() -> None:
    low = 0.025 ** (1 / 12)
    for form, counts in {"share": (1, 1), "f1": (2, 2, 3, 3), "macro_f1": (1, 0, 0, 2)}.items():
        found = bootstrap_counts(form, [counts] * 12)
        assert (found.mean, found.low, found.high) == pytest.approx((1, low, 1)), form
