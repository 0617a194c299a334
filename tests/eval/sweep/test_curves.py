"""Curves over seeds and differences to the reference, against hand-worked cases, and in words and tables."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pandas import DataFrame
from scipy import stats

from eval.sweep.curves import (
    AFTER_TRAINING,
    AT_END,
    OVER_CURVE,
    Setting,
    averaged,
    ends_table,
    mean_until,
    over_seeds,
    paired,
    setting_table,
    settings,
    value_at,
    verdicts,
)
from tests.eval.fake_sweeps import probed_rows, probed_settings, row


def setting_of(rows: list[dict[str, Any]]) -> Setting:
    (setting,) = settings(["seed", "way"], {"way": "sft"}, rows)
    return setting


def test_a_curve_is_linear_between_rows_and_its_mean_is_the_area_under_it() -> None:
    curve = DataFrame([row("a", 0, 0, 0.0, 0), row("a", 0, 10, 0.4, 100), row("a", 0, 20, 1.0, 300)], dtype=object)
    assert value_at(curve, "conflict", 200) == pytest.approx(0.7)
    assert value_at(curve, "conflict", 999) == pytest.approx(1.0)
    # Trapezoids: 100 · 0.2 + 200 · 0.7 over 300 seconds; up to 200 seconds 100 · 0.2 + 100 · (0.4 + 0.7) / 2.
    assert mean_until(curve, "conflict", 300) == pytest.approx(160 / 300)
    assert mean_until(curve, "conflict", 200) == pytest.approx(75 / 200)
    assert mean_until(curve, "conflict", 0) == 0


def test_a_t_interval_over_seeds() -> None:
    found = over_seeds([0.2, 0.4, 0.6])
    half = 4.302653 * 0.2 / math.sqrt(3)  # t(0.975, 2) · s / √n
    assert (found.mean, found.low, found.high) == pytest.approx((0.4, 0.4 - half, 0.4 + half), abs=1e-6)
    assert over_seeds([0.3]).low == 0.3


def test_paired_differences_have_the_p_of_a_t_test_and_without_variance_that_of_sign_flips() -> None:
    first, second = [0.1, 0.3, 0.2, 0.5], [0.4, 0.5, 0.6, 0.7]
    changes = [b - a for a, b in zip(first, second, strict=True)]
    assert paired(changes).p_value == pytest.approx(stats.ttest_rel(second, first).pvalue)
    assert paired([0.5] * 4).p_value == 1 / 8
    assert paired([0.8 - 0.9, 0.5 - 0.6]).p_value == 0.5  # the same up to rounding
    assert paired([0.1 + 0.2 - 0.3] * 8).p_value == 1  # zero up to rounding
    assert (paired([0.5]).p_value, paired([0.5]).high) == (1, math.inf)


def test_each_variant_is_compared_with_the_plain_reference_at_equal_compute() -> None:
    setting = setting_of(probed_rows())
    assert (setting.reference, list(setting.variants), list(setting.compared)) == (
        "sft", ["sft", "slow", "good"], ["slow", "good"]
    )  # fmt: skip
    slow, good = setting.compared["slow"], setting.compared["good"]
    assert slow.cost == pytest.approx(2)
    assert good.seeds == 3
    # At 20 seconds sft is at step 20, slow at step 10; both end with the same accuracy.
    assert slow.differences[AT_END, "conflict"].mean == pytest.approx(-(0.2 + 0.3 + 0.25) / 3)
    assert slow.differences[AFTER_TRAINING, "conflict"].mean == pytest.approx(0)
    assert (good.verdict, slow.verdict) == ("better", "worse")
    # Over the curve: good is linear to 1, sft to 0.4, 0.6 and 0.5, so half of +0.6, +0.4 and +0.5. Holm of two.
    p = stats.ttest_1samp([0.3, 0.2, 0.25], 0).pvalue
    assert good.differences[OVER_CURVE, "conflict"].mean == pytest.approx(0.25)
    assert good.differences[OVER_CURVE, "conflict"].adjusted_p == pytest.approx(2 * p)
    assert good.differences[OVER_CURVE, "aligned"].mean == pytest.approx(0)


def test_a_variant_of_one_seed_is_no_test_and_is_not_corrected_for() -> None:
    once = [{**own, "way": "once"} for own in probed_rows() if own["way"] == "good" and own["seed"] == 0]
    before, after = setting_of(probed_rows()).compared, setting_of([*probed_rows(), *once]).compared
    assert after["once"].verdict == "one seed"
    assert after["once"].differences[OVER_CURVE, "conflict"].adjusted_p is None
    assert after["good"] == before["good"]


def test_after_training_further_datasets_are_compared_too() -> None:
    rows = [{**own, "conflict_new": own["conflict"] / 2 + (own["way"] == "good") * 0.1} for own in probed_rows()]
    setting = setting_of(rows)
    good = setting.compared["good"].differences
    # At step 20: good 1, sft 0.4, 0.6 and 0.5, so +0.6, +0.4, +0.5; of the other dataset half of it and 0.1.
    assert good[AFTER_TRAINING, "conflict"].mean == pytest.approx(0.5)
    assert good[AFTER_TRAINING, "conflict_new"].mean == pytest.approx(0.35)
    p = stats.ttest_1samp([0.4, 0.3, 0.35], 0).pvalue
    assert good[AFTER_TRAINING, "conflict_new"].adjusted_p == pytest.approx(2 * p)  # Holm: `slow` has p 1
    frame = ends_table(setting).frame
    assert list(frame[frame["variant"] == "good"]["dataset"]) == ["", "", "new"]
    assert "dataset" not in ends_table(probed_settings()[0]).frame


def test_a_curve_over_seeds_has_a_mean_at_each_step() -> None:
    steps = averaged(setting_of(probed_rows()).variants["sft"], "conflict")
    assert [(step, seeds) for step, _, seeds in steps] == [(0, 3), (10, 3), (20, 3)]
    assert steps[2][1].mean == pytest.approx((0.4 + 0.6 + 0.5) / 3)


def test_a_setting_is_compared_within_itself_and_left_out_without_its_reference() -> None:
    found = probed_settings()
    assert [setting.name for setting in found] == ["strength 0.5", "strength 0.95"]
    lines = verdicts(found[1])
    assert lines[0].startswith("good is better than sft: conflict +")
    assert lines[1].startswith("slow is worse than sft: conflict -")
    table = setting_table(found[0])
    assert list(table.frame["variant"]) == ["sft", "slow", "good"], "answers without context are not compared"
    assert list(table.frame["verdict"]) == ["reference", "worse", "better"]
    rows = [own for own in probed_rows(strength=0.5) if own["way"] != "sft"]
    assert settings(["seed", "way", "strength"], {"way": "sft"}, rows) == []
