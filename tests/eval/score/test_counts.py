"""Scores of counts: against scikit-learn, against every one of all swaps, and against the tests of plain means."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from sklearn.metrics import f1_score

from eval.score.counts import FORMS, bootstrap_counts, paired_counts, score_of
from eval.score.statistics import bootstrap_average, paired_average


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
    width = {"share": 2, "f1": 4}.get(form, 9)
    first, second = rng.integers(1, 5, size=(2, 6, width)).astype(float)
    if form in ("share", "f1"):
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


def test_of_a_share_it_is_the_sign_flip_test_and_the_bootstrap_of_a_mean() -> None:
    rng = np.random.default_rng(2)
    one, other = rng.random(60) < 0.4, rng.random(60) < 0.6
    counts = [np.stack([hits, np.ones(60)], axis=1) for hits in (one, other)]
    known, found = paired_average([one], [other]), paired_counts("share", *counts)
    assert found.mean == pytest.approx(known.mean)
    assert (found.low, found.high) == pytest.approx((known.low, known.high), abs=0.03)
    assert found.p_value == pytest.approx(known.p_value, abs=0.02)
    plain, own = bootstrap_average([one]), bootstrap_counts("share", counts[0])
    assert (own.mean, own.low, own.high) == pytest.approx((plain.mean, plain.low, plain.high), abs=0.03)


def test_equal_results_do_not_differ() -> None:
    counts = np.random.default_rng(3).integers(0, 4, size=(30, 9))
    found = paired_counts("macro_f1", counts, counts)
    most = 1 - 0.025 ** (1 / 30)
    assert (found.mean, found.low, found.high, found.p_value) == pytest.approx((0, -most, most, 1))


def test_resamples_with_nothing_to_divide_by_are_left_out() -> None:
    found = bootstrap_counts("share", [(1, 2), (2, 2), (0, 0), (0, 0)])  # some resamples miss both that count
    assert (found.mean, found.low, found.high) == (0.75, 0.5, 1)


def test_a_perfect_score_has_the_exact_interval_of_its_items() -> None:
    low = 0.025 ** (1 / 12)
    for form, counts in {"share": (1, 1), "f1": (2, 2, 3, 3), "macro_f1": (1, 0, 0, 2)}.items():
        found = bootstrap_counts(form, [counts] * 12)
        assert (found.mean, found.low, found.high) == pytest.approx((1, low, 1)), form


@pytest.mark.parametrize("counts", [[], [1.0, 2.0]])
def test_counts_of_another_shape_are_refused(counts: list[float]) -> None:
    with pytest.raises(ValueError, match="expected \\(items, counts\\)"):
        bootstrap_counts("share", counts)


def test_pairs_of_other_shapes_and_undefined_scores_are_refused() -> None:
    with pytest.raises(ValueError, match="different shapes"):
        paired_counts("share", [(1, 1)], [(1, 1), (0, 1)])
    with pytest.raises(ValueError, match="nothing to divide by"):
        paired_counts("share", [(0, 0)], [(1, 1)])
