"""When trainings read and where they end, against hand-worked cases: curves, time to an event, and comparisons."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from pandas import DataFrame
from scipy import stats

from d2e_sft.config.recipe import load_recipe
from eval.compare.reading import (
    Onset,
    Setting,
    a_step,
    averaged,
    log_rank,
    onset_table,
    over_seeds,
    paired,
    plateau,
    plateau_table,
    probed,
    reads_at,
    settings,
    verdicts,
)
from eval.compare.runs import Row, RunResult, probe_rows
from eval.sweep.cells import rows_of
from tests.eval.fake_sweeps import probed_rows, probed_settings, row


def setting_of(rows: list[dict[str, Any]]) -> Setting:
    (setting,) = settings(["seed", "way"], {"way": "sft"}, rows)
    return setting


def curve(*percents: float, seconds: float = 1.0) -> DataFrame:
    """A curve with an evaluation at each step."""
    return DataFrame([row("a", 0, step, one / 100, step * seconds) for step, one in enumerate(percents)], dtype=object)


# SFT on the habit task: it reads after 56 steps, and forgets again while aligned rows stay right.
FORGETS = (0, 12, 15, 17, 35, 57, 60, 75, 70, 73, 60, 48, 70, 55, 72, 80, 40, 45, 20, 22, 42)


def test_a_curve_reads_from_the_first_evaluation_of_the_first_fifth_whose_mean_is_enough() -> None:
    forgets = curve(*FORGETS)
    # A fifth of 21 evaluations is four. 17, 35, 57, 60 have a mean of 42; 35, 57, 60, 75 of 57, and 57 is the first.
    assert reads_at(forgets, 0.5) == 5
    assert reads_at(forgets, 0.7) is None, "60, 75, 70, 73 and 75, 70, 73, 60 have a mean of 69.5"
    assert plateau(forgets) == pytest.approx((45 + 20 + 22 + 42) / 400)
    assert reads_at(curve(0, 90, *[0] * 8, 80, 80, 80, 80, 80), 0.7) == 10, "one high evaluation is not enough"
    assert reads_at(curve(*[0] * 8, 71, 69), 0.7) == 8, "the last fifth, whose mean is 0.7 up to rounding"
    rows_have = curve(*[0] * 12, *(100 * round(right / 30, 4) for right in (19, 22, 22)))
    assert reads_at(rows_have, 0.7) == 13, "63 of 90 are 70 %, though 0.6333, 0.7333 and 0.7333 are less"
    assert reads_at(curve(95, 95, 90, 90, 90), 0.7) == 0, "a model that reads before it is trained"
    assert reads_at(curve(0, 0, 70), 0.7) == 2


def test_the_share_that_reads_is_kaplan_and_meiers_estimate() -> None:
    # Of five seeds two read at steps 2 and 4 of 10; one ends at step 3, two at step 10.
    own = Onset([2.0, 4.0], [3.0, 10.0, 10.0], 0)
    found, last = own.estimate().cdf, 1 - 0.8 * 2 / 3
    assert list(found.quantiles) == [2, 3, 4, 10]
    assert list(found.probabilities) == pytest.approx([0.2, 0.2, last, last])
    assert [own.at_risk(compute) for compute in (0, 2, 2.5, 4, 11)] == [5, 5, 4, 3, 0]
    assert math.isinf(own.median().mean)
    whole = Onset([1.0, 2.0, 3.0, 4.0, 5.0], [], 0).median()
    # log(−log S) ± 1.96 · se at step 3 with S = 0.4; the upper bound is above a half at each step.
    assert (whole.mean, whole.low) == (3.0, 1.0)
    assert math.isinf(whole.high) or whole.high >= 4


def test_seeds_and_variants_of_equal_cost_have_one_clock() -> None:
    # The second seed ran on a slower machine: both end at step 4, and only the first reads there.
    own = {0: curve(0, 0, 0, 0, 90, seconds=1), 1: curve(0, 0, 0, 0, 0, seconds=0.5)}
    assert a_step(own) == 0.75
    onset = Onset.of(own, 0.7, a_step(own))
    assert (onset.reached, onset.censored) == ([3.0], [3.0])
    assert onset.estimate().cdf.probabilities[-1] == 0.5, "the seed that ends is at risk until then"
    # Good reads in its last step, which took 2 % longer than SFT's: SFT is still at risk then.
    rows = [
        row(way, seed, step, float(way == "good" and step == 4), step * seconds)
        for way, seconds in (("sft", 1.0), ("good", 1.02))
        for seed in range(4)
        for step in range(5)
    ]
    setting = setting_of(rows)
    assert setting.onset("good", 0.7).reached == setting.onset("sft", 0.7).censored == [4.0] * 4
    assert setting.compared["good"].verdict[0] == "reads 70 % sooner"


def test_the_log_rank_test_compares_times() -> None:
    one, other = Onset([1.0, 2.0, 3.0, 3.5, 4.0, 4.5], [9.0], 0), Onset([5.0, 6.0], [9.0] * 5, 0)
    # Observed less expected events of the first group, and their variance, at each event.
    risk = [(7 - n, 7) for n in range(6)] + [(1, 7), (1, 6)]
    expected = sum(a / (a + b) for a, b in risk)
    statistic = (6 - expected) / math.sqrt(sum(a * b / (a + b) ** 2 for a, b in risk))
    found = log_rank(one, other)
    assert found is not None
    assert found.mean == pytest.approx(statistic)
    assert found.p_value == pytest.approx(2 * stats.norm.sf(statistic))
    assert log_rank(other, one).mean < 0  # type: ignore[union-attr]
    assert log_rank(Onset([], [9.0], 0), Onset([], [9.0], 0)) is None
    assert log_rank(Onset([1.0], [], 0), other) is None, "one seed is no test"
    same = Onset([1.0, 1.0], [], 0)
    assert log_rank(same, same).p_value == 1  # type: ignore[union-attr]


def test_a_t_interval_over_seeds() -> None:
    found = over_seeds([0.2, 0.4, 0.6])
    half = 4.302653 * 0.2 / math.sqrt(3)  # t(0.975, 2) · s / √n
    assert (found.mean, found.low, found.high) == pytest.approx((0.4, 0, 0.4 + half), abs=1e-6), "shares end at 0"
    assert over_seeds([0.2, 0.4, 0.6], least=-1).low == pytest.approx(0.4 - half, abs=1e-6), "a gap may be negative"
    assert over_seeds([0.3]).low == 0.3


def test_paired_differences_have_the_p_of_a_t_test_and_without_variance_that_of_sign_flips() -> None:
    first, second = [0.1, 0.3, 0.2, 0.5], [0.4, 0.5, 0.6, 0.7]
    changes = [b - a for a, b in zip(first, second, strict=True)]
    assert paired(changes).p_value == pytest.approx(stats.ttest_rel(second, first).pvalue)
    assert paired([0.5] * 4).p_value == 1 / 8
    assert (paired([0.5] * 4).low, paired([0.5] * 6).low) == (-1, 0.5), "too few equal differences tell nothing"
    assert paired([0.8 - 0.9, 0.5 - 0.6]).p_value == 0.5  # the same up to rounding
    assert paired([0.1 + 0.2 - 0.3] * 8).p_value == 1  # zero up to rounding
    assert (paired([0.5]).p_value, paired([0.5]).high) == (1, math.inf)


def test_each_variant_is_compared_with_the_plain_reference() -> None:
    setting = setting_of(probed_rows())
    assert (setting.reference, list(setting.curves), list(setting.compared)) == (
        "sft", ["sft", "slow", "good"], ["slow", "good"]
    )  # fmt: skip
    slow, good = setting.compared["slow"], setting.compared["good"]
    assert setting.cost("slow") == pytest.approx(2)
    # Three evaluations: the plateau is the last one. good ends with 1, sft and slow with 0.4, 0.6 and 0.5.
    assert slow.plateaus["conflict"].mean == pytest.approx(0)
    p = stats.ttest_1samp([0.6, 0.4, 0.5], 0).pvalue
    assert good.plateaus["conflict"].mean == pytest.approx(0.5)
    assert good.plateaus["conflict"].adjusted_p == pytest.approx(2 * p), "Holm of two"
    # At 50 %, good reads at step 10 with each seed; sft and slow at step 20 with two of three.
    assert setting.onset("good", 0.5) == Onset([10.0] * 3, [], 0)
    assert setting.onset("slow", 0.5) == Onset([40.0] * 2, [40.0], 0)
    assert good.onsets[0.5].mean > 0 > slow.onsets[0.5].mean
    raw = log_rank(setting.onset("good", 0.5), setting.onset("sft", 0.5))
    assert raw is not None
    assert raw.p_value == pytest.approx(0.1), "two of the twenty ways to deal six seeds out"
    assert good.onsets[0.5].adjusted_p == pytest.approx(0.2)
    assert good.verdict == ["ends higher"], "three seeds against three are too few for the log-rank test"


def test_what_is_lost_again_counts_by_the_plateau() -> None:
    rows = [
        {**row(way, seed, step, percent / 100, step), "aligned": 1.0}
        for way, percents in (("sft", FORGETS), ("good", [0] * 5 + [90] * 16))
        for seed in range(4)
        for step, percent in enumerate(percents)
    ]
    setting = setting_of(rows)
    assert setting.onset("sft", 0.5) == Onset([5.0] * 4, [], 4)
    assert setting.onset("good", 0.7) == Onset([5.0] * 4, [], 0)
    first, second = verdicts(setting)
    assert first == "sft: 0 of 4 seeds read 70 % of conflict rows, median – CPU seconds; plateau 32.2 %"
    assert second.startswith("good reads 70 % sooner than sft: 4 of 4 seeds read 70 % of conflict rows, median 5 [")
    table = onset_table(setting)
    assert list(table.frame["lost"]) == ["4", "0", "0", "0"]
    for wide, keys in ((table, ["variant", "threshold"]), (plateau_table(setting), ["variant", "subset"])):
        parts = [part.split()[: len(keys)] for part in wide.terminal(40).split("\n\n") if part.startswith("variant")]
        assert len(parts) > 1
        assert parts == [keys] * len(parts), "each part of a wide table says which rows these are"


def test_a_variant_of_one_seed_is_no_test_and_is_not_corrected_for() -> None:
    once = [{**own, "way": "once"} for own in probed_rows() if own["way"] == "good" and own["seed"] == 0]
    before, after = setting_of(probed_rows()).compared, setting_of([*probed_rows(), *once]).compared
    assert (after["once"].onsets, after["once"].plateaus) == ({}, {})
    assert after["good"] == before["good"]


def test_plateaus_of_further_datasets_are_compared_too() -> None:
    rows = [{**own, "conflict_new": own["conflict"] / 2 + (own["way"] == "good") * 0.1} for own in probed_rows()]
    setting = setting_of(rows)
    good = setting.compared["good"].plateaus
    # At step 20: good 1, sft 0.4, 0.6 and 0.5, so +0.6, +0.4, +0.5; of the other dataset half of it and 0.1.
    assert good["conflict"].mean == pytest.approx(0.5)
    assert good["conflict_new"].mean == pytest.approx(0.35)
    p = stats.ttest_1samp([0.4, 0.3, 0.35], 0).pvalue
    assert good["conflict_new"].adjusted_p == pytest.approx(2 * p)  # Holm: `slow` has p 1
    frame = plateau_table(setting).frame
    assert list(frame[frame["variant"] == "good"]["dataset"]) == ["", "", "new"]
    assert "dataset" not in plateau_table(probed_settings()[0]).frame


def test_a_curve_over_seeds_has_a_mean_at_each_step() -> None:
    rows = setting_of(probed_rows()).rows
    steps = averaged(rows[rows["variant"] == "sft"], "conflict")
    assert [(step, seeds) for step, _, seeds in steps] == [(0, 3), (10, 3), (20, 3)]
    assert steps[2][1].mean == pytest.approx((0.4 + 0.6 + 0.5) / 3)


def test_a_setting_is_compared_within_itself_and_left_out_without_its_reference() -> None:
    found = probed_settings()
    assert [setting.name for setting in found] == ["strength 0.5", "strength 0.95"]
    lines = verdicts(found[1])
    assert lines[0].startswith("sft: 0 of 3 seeds read 70 %")
    assert lines[1].startswith("good ends higher than sft: 3 of 3 seeds read 70 % of conflict rows, median 20")
    assert lines[2] == "not decided against sft: 1 of 2 variants of several seeds"
    assert list(plateau_table(found[0]).frame["variant"].unique()) == ["sft", "slow", "good"], "not without context"
    rows = [own for own in probed_rows(strength=0.5) if own["way"] != "sft"]
    assert settings(["seed", "way", "strength"], {"way": "sft"}, rows) == []


def test_rows_of_a_further_axis_are_no_part_of_a_setting() -> None:
    own, others = probed_rows(), [other for rate in (1e-5, 1e-3) for other in probed_rows(rate=rate)]
    found = setting_of([*others, *own])
    assert {len(curve) for by_seed in found.curves.values() for curve in by_seed.values()} == {3}
    assert settings(["seed", "way"], {"way": "sft"}, others) == []


def test_a_run_whose_name_is_a_number_has_its_curve(tmp_path: Path) -> None:
    runs = list[RunResult]()
    for rate in ("0.001", "0.01"):
        home = tmp_path / rate
        keys = [f"train.output_dir={home}", f"train.learning_rate={rate}"]
        load_recipe("smollm2-135m-habit/sft", keys).save(home)
        entry = {"step": 2, "eval_n": 30, "eval_alpha": 0.5, "eval_train_seconds": 3.0, "eval_train_cpu_seconds": 2.0}
        entry |= {"eval_plain_aligned": 1.0, "eval_plain_conflict": 0.5}
        (home / "trainer_state.json").write_text(json.dumps({"log_history": [entry]}))
        runs.append(RunResult(home, rate, home))
    setting = probed(runs)
    assert setting is not None
    assert (setting.reference, list(setting.curves)) == ("0.001", ["0.001", "0.01"])


def rows_of_log(history: list[dict[str, Any]]) -> list[Row]:
    recipe = load_recipe("smollm2-135m-habit/d2e", ["train.output_dir=x", "train.batch_size=64"])
    return probe_rows(history, recipe, {"seed": "3", "way": "sft"}, {})


def test_each_evaluation_gives_a_row_per_way_of_answering() -> None:
    shares = {
        f"eval_{way}_{subset}": share
        for way, share in (("plain", 0.5), ("debiased", 0.25), ("imagined", 0.0))
        for subset in ("aligned", "conflict")
    }
    entry = {"step": 2, "eval_n": 30, "eval_alpha": 0.5, "eval_train_seconds": 3.0004, "eval_train_cpu_seconds": 2.0}
    history = [{"step": 1, "loss": 2.0}, {**entry, **shares}]
    rows = rows_of_log(history)
    assert [row["decoder"] for row in rows] == ["plain", "d2e:alpha=0.5", "without_context"]
    assert rows[1] == {
        "seed": 3, "way": "sft", "decoder": "d2e:alpha=0.5", "samples": 128,
        "step": 2, "aligned": 0.25, "conflict": 0.25, "n": 30, "seconds": 3.0, "cpu_seconds": 2.0,
    }  # fmt: skip
    assert rows_of(rows, {"seed": "3", "way": "sft"}) == rows
    assert rows_of(rows, {"seed": "4", "way": "sft"}) == []
    assert rows_of(rows, {"seed": "3"}) == [], "rows of a further axis are of other trainings"
    assert rows_of_log([{"step": 1, "loss": 2.0}]) == []


def test_probed_runs_that_differ_in_the_seed_are_one_way_of_training(tmp_path: Path) -> None:
    runs, ways = list[RunResult](), [
        ("a", "sft", 0, 0.2, "x"), ("b", "sft", 1, 0.4, "x"), ("c", "teacher", 0, 0.9, "x"),
        ("swapped", "sft", 0, 0.8, "y"), ("again", "sft", 0, 0.3, "x"),
    ]  # fmt: skip
    for name, objective, seed, share, data in ways:
        home = tmp_path / name
        (home / "checkpoint-2").mkdir(parents=True)
        keys = [f"train.output_dir={home}", f"train.seed={seed}", f"d2e.objective={objective}", f"data.train={data}"]
        load_recipe("smollm2-135m-habit/sft", keys).save(home)
        entry = {"step": 2, "eval_n": 30, "eval_alpha": 0.5, "eval_train_seconds": 3.0, "eval_train_cpu_seconds": 2.0}
        history = [entry | {"eval_plain_aligned": 1.0, "eval_plain_conflict": share, "eval_train_tokens": 5_000_000}]
        (home / "trainer_state.json").write_text(json.dumps({"log_history": history}))
        runs.append(RunResult(home, name, home))
    checkpoints = [tmp_path / name / "checkpoint-2" for name in ("a", "again")]
    setting = probed([*runs, *(RunResult(path, f"{path.parent.name} at 2", path) for path in checkpoints)])
    assert setting is not None
    assert setting.reference == "a"
    curves = {name: list(of) for name, of in setting.curves.items()}
    assert curves == {"a": [0, 1], "c": [0], "swapped": [0], "again": [0]}
    assert [len(curve) for curve in setting.curves["a"].values()] == [1, 1]
    groups = [("swapped", runs[3]), ("swapped", runs[1]), ("c", runs[2])]  # the data of a seed may be its own
    of_seeds = probed([RunResult(run.path, label, run.folder, seed=7) for label, run in groups])
    assert of_seeds is not None
    assert {name: list(of) for name, of in of_seeds.curves.items()} == {"swapped": [0, 1], "c": [0]}
    assert setting.plateaus("a")["conflict"] == [0.2, 0.4]
    assert setting.onset("c", 0.7, "tokens") == Onset([5_000_000.0], [], 0)
    frame = onset_table(setting).frame
    assert [str(cell).split()[0] for cell in frame[frame["variant"] == "c"]["M tokens until"]] == ["5", "5"]
    assert "M tokens until" not in onset_table(setting_of(probed_rows())).frame
    assert probed([RunResult(tmp_path, "untrained", tmp_path)]) is None
