"""Curves over seeds and differences to the reference, against hand-worked cases, and in words and tables."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from eval.sweep.curves import (
    Curve,
    Variant,
    averaged,
    contrasts,
    ends_table,
    over_seeds,
    paired,
    setting_table,
    settings,
    variants,
    verdicts,
)
from tests.eval.fake_sweeps import probed_rows, probed_settings, row


def test_a_curve_is_linear_between_rows_and_its_mean_is_the_area_under_it() -> None:
    curve = Curve(0, [row("a", 0, 0, 0.0, 0), row("a", 0, 10, 0.4, 100), row("a", 0, 20, 1.0, 300)])
    assert curve.at("conflict", "step", 5) == pytest.approx(0.2)
    assert curve.at("conflict", "cpu_seconds", 200) == pytest.approx(0.7)
    assert curve.at("conflict", "step", 99) == pytest.approx(1.0)
    # Trapezoids: 10 · 0.2 + 10 · 0.7 over 20 steps; 100 · 0.2 + 200 · 0.7 over 300 seconds.
    assert curve.mean("conflict", "step", 20) == pytest.approx(0.45)
    assert curve.mean("conflict", "cpu_seconds", 300) == pytest.approx(160 / 300)
    # Up to 200 seconds: 100 · 0.2 + 100 · (0.4 + 0.7) / 2.
    assert curve.mean("conflict", "cpu_seconds", 200) == pytest.approx(75 / 200)


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
    assert paired([0.0] * 4).p_value == 1
    assert paired([0.8 - 0.9, 0.5 - 0.6]).p_value == 0.5  # the same up to rounding
    assert paired([0.1 + 0.2 - 0.3] * 8).p_value == 1  # zero up to rounding
    assert paired([0.5]).p_value == 1
    assert paired([0.5]).high == math.inf


def test_each_way_is_compared_with_the_plain_reference_at_equal_compute() -> None:
    found = variants(probed_rows(), ["seed", "way"])
    assert [variant.name(["way"]) for variant in found] == ["sft", "slow", "good", "sft (without_context)"]
    made = {one.variant.name(["way"]): one for one in contrasts(found, {"way": "sft"})}
    assert list(made) == ["slow", "good"]
    slow, good = made["slow"], made["good"]
    assert slow.cost == pytest.approx(2)
    assert good.seeds == 3
    # At 20 seconds sft stands at step 20, slow at step 10.
    assert slow.at_end["conflict"].mean == pytest.approx(-(0.2 + 0.3 + 0.25) / 3)
    assert good.verdict == "better"
    assert slow.verdict == "worse"
    assert good.over_curve["conflict"].adjusted_p is not None
    assert good.over_curve["aligned"].mean == pytest.approx(0)


def test_a_way_of_one_seed_is_no_test_and_is_not_corrected_for() -> None:
    once = [{**one, "way": "once"} for one in probed_rows() if one["way"] == "good" and one["seed"] == 0]
    before, after = (
        {one.variant.name(["way"]): one for one in contrasts(variants(rows, ["seed", "way"]), {"way": "sft"})}
        for rows in (probed_rows(), [*probed_rows(), *once])
    )
    assert after["once"].verdict == "one seed"
    assert after["once"].over_curve["conflict"].adjusted_p is None
    assert after["good"] == before["good"]


def test_at_equal_steps_the_slow_one_is_not_decided() -> None:
    made = contrasts(variants(probed_rows(), ["seed", "way"]), {"way": "sft"}, basis="step")
    slow = next(one for one in made if one.variant == Variant((("way", "slow"),), "plain"))
    assert slow.at_end["conflict"].mean == pytest.approx(0)
    assert slow.verdict == "not decided"


def test_after_training_further_datasets_are_compared_too() -> None:
    rows = [{**one, "conflict_new": one["conflict"] / 2 + (one["way"] == "good") * 0.1} for one in probed_rows()]
    (setting,) = settings(["seed", "way"], {"way": "sft"}, rows)
    good = next(one for one in setting.compared if one.variant.name(["way"]) == "good")
    # At step 20: good 1, sft 0.4, 0.6 and 0.5, so +0.6, +0.4, +0.5; of the other dataset half of it and 0.1.
    assert good.after_training["conflict"].mean == pytest.approx(0.5)
    assert good.after_training["conflict_new"].mean == pytest.approx(0.35)
    p = stats.ttest_1samp([0.4, 0.3, 0.35], 0).pvalue
    assert good.after_training["conflict_new"].adjusted_p == pytest.approx(2 * p)  # Holm: `slow` has p 1
    lines = ends_table(setting).markdown().splitlines()
    assert [line for line in lines if line.startswith("| good") and "| new" in line and "+35.0" in line]
    assert not [line for line in ends_table(probed_settings()[0]).markdown().splitlines() if "dataset" in line]


def test_a_curve_over_seeds_has_a_mean_at_each_step() -> None:
    found = variants(probed_rows(), ["seed", "way"])
    steps = averaged(found[Variant((("way", "sft"),), "plain")], "conflict")
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
    rows = [row for row in probed_rows(strength=0.5) if row["way"] != "sft"]
    assert settings(["seed", "way", "strength"], {"way": "sft"}, rows) == []
