"""Curves over seeds against hand-worked cases, rows of the results file, tables and the page."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from pandas import DataFrame
from scipy import stats

from d2e_sft.config.recipe import load_recipe
from d2e_sft.util.errors import UserError
from eval.pages.sweep.page import curves_chart, drawn_axis, ends_chart, reading_points, sweep_lines, write_sweep_page
from eval.sweep.curves import (
    AFTER_TRAINING,
    AT_END,
    OVER_CURVE,
    Row,
    Setting,
    averaged,
    ends_table,
    mean_until,
    over_seeds,
    paired,
    read_rows,
    refuse_other_overrides,
    rows_of,
    rows_of_run,
    setting_table,
    settings,
    value_at,
    verdicts,
    write_rows,
)
from eval.sweep.results import collect, results_table, write_results
from tests.eval.fake_sweeps import make_sweep, planned, probed_rows, probed_settings, row


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


def rows_of_log(run: Path, history: list[dict[str, Any]]) -> list[Row]:
    (run / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    recipe = load_recipe("smollm2-135m-habit/d2e", [f"train.output_dir={run}", "train.batch_size=64"])
    return rows_of_run(run, recipe, {"seed": "3", "way": "sft"}, {})


def test_each_evaluation_gives_a_row_per_way_of_answering(tmp_path: Path) -> None:
    shares = {
        f"eval_{way}_{subset}": share
        for way, share in (("plain", 0.5), ("debiased", 0.25), ("imagined", 0.0))
        for subset in ("aligned", "conflict")
    }
    entry = {"step": 2, "eval_n": 30, "eval_alpha": 0.5, "eval_train_seconds": 3.0004, "eval_train_cpu_seconds": 2.0}
    history = [{"step": 1, "loss": 2.0}, {**entry, **shares}]
    rows = rows_of_log(tmp_path, history)
    assert [row["decoder"] for row in rows] == ["plain", "d2e:alpha=0.5", "without_context"]
    assert rows[1] == {
        "seed": 3, "way": "sft", "decoder": "d2e:alpha=0.5", "samples": 128,
        "step": 2, "aligned": 0.25, "conflict": 0.25, "n": 30, "seconds": 3.0, "cpu_seconds": 2.0,
    }  # fmt: skip
    assert rows_of(rows, {"seed": "3"}) == rows
    assert rows_of(rows, {"seed": "4"}) == []
    with pytest.raises(UserError, match="no accuracy by subset"):
        rows_of_log(tmp_path, [{"step": 1, "loss": 2.0}])


def test_the_file_has_a_row_a_line_and_a_broken_one_is_refused(tmp_path: Path) -> None:
    rows = [{"seed": 0, "step": 1}, {"seed": 1, "step": 1}]
    file = tmp_path / "folder" / "rows.json"
    assert read_rows(file) == []
    write_rows(rows, file)
    assert read_rows(file) == rows
    whole = file.read_text()
    assert len(whole.splitlines()) == 5
    edited = {"was changed": whole.replace('"step": 1', '"step": 2'), "has no checksums": '{"rows": []}'}
    for said, text in {**edited, "not the rows of a sweep": "[1, 2]", "Invalid JSON": "["}.items():
        file.write_text(text)
        with pytest.raises(UserError, match=said):
            read_rows(file)


def test_rows_of_other_settings_are_kept_in_another_file(tmp_path: Path) -> None:
    rows = [{"seed": 0, "step": 1, "overrides": {"train.seed": "1"}}]
    refuse_other_overrides(rows, {"train.seed": "1"}, tmp_path)
    with pytest.raises(UserError, match="this call asks for the file's own settings") as error:
        refuse_other_overrides(rows, {}, tmp_path)
    assert "has rows measured with train.seed=1" in str(error.value)


def test_a_point_whose_scores_were_edited_is_in_no_table(tmp_path: Path) -> None:
    sweep, results = make_sweep(tmp_path)
    write_results(sweep, results)
    file = sweep.out / sweep.work[1].name / "eval/mini/scores.json"
    file.write_text(file.read_text().replace('"mean": 1.0', '"mean": 0.9876', 1))
    with pytest.raises(UserError, match=r"scores\.json: was changed after it was written"):
        collect(sweep)


def test_rows_with_subsets_have_conflict_and_aligned_side_by_side(tmp_path: Path) -> None:
    sweep, results = make_sweep(tmp_path, tagged=True)
    frame = results_table(sweep, results).frame
    assert list(frame.columns) == [
        "debias", "alpha", "conflict", "aligned", "gap", "habit rate", "unparsed", "status"
    ]  # fmt: skip
    assert [[cell.split()[0] for cell in line[2:6]] for line in frame.to_numpy()] == [
        ["–", "–", "–", "–"],
        ["100.0", "100.0", "0.0", "0.0"],
        ["50.0", "100.0", "50.0", "50.0"],
        ["50.0", "100.0", "50.0", "50.0"],
    ]
    write_results(sweep, results)
    written = json.loads((sweep.out / "results.json").read_text())["rows"]
    assert "subsets" not in written[0]
    assert written[2]["subsets"]["gap"]["mean"] == 0.5


def test_a_line_of_the_plot_is_a_combination_of_the_other_axes(tmp_path: Path) -> None:
    sweep, results = make_sweep(tmp_path)
    assert drawn_axis(sweep) == "d2e.alpha"
    lines = sweep_lines(sweep, results)
    assert [(line.label, line.places) for line in lines] == [("debias=true", [1.0]), ("debias=false", [0.1, 1.0])]


def test_scores_are_shown_as_plot_and_table(tmp_path: Path) -> None:
    sweep, results = make_sweep(tmp_path)
    text, page, picture = write_sweep_page(sweep, results, [])
    assert picture.read_bytes().startswith(b"\x89PNG")
    shown = page.read_text(encoding="utf-8")
    assert "<h2>Mean of EM and F1 against d2e.alpha</h2>" in shown
    assert shown.count("same as debias=false,alpha=0.1") == 1
    assert "same as debias=false,alpha=0.1" in text.read_text(encoding="utf-8")


def test_rows_with_subsets_are_shown_as_conflict_against_aligned(tmp_path: Path) -> None:
    sweep, results = make_sweep(tmp_path, tagged=True)
    points = reading_points(results)
    assert [(p.label, p.conflict.mean, p.aligned.mean) for p in points] == [
        ("debias=true,alpha=1.0", 1.0, 1.0),
        ("debias=false,alpha=0.1", 0.5, 1.0),
    ]
    assert [score.mean for line in sweep_lines(sweep, results) for score in line.scores] == [1.0, 0.5, 0.5]
    text = write_sweep_page(sweep, results, [])[1].read_text(encoding="utf-8")
    assert text.index("<h2>Does it use the context?</h2>") < text.index("<h2>Conflict accuracy against d2e.alpha</h2>")


def test_a_probe_is_shown_as_verdicts_then_curves(tmp_path: Path) -> None:
    sweep = planned(
        tmp_path, text="axes: {seed: [0, 1], way: [sft, slow]}\nprobe: {reference: {way: sft}}", bench=None
    )
    markdown, page = write_sweep_page(sweep, [], probed_settings())
    text = page.read_text(encoding="utf-8")
    assert text.index("good is better than sft") < text.index("<svg")
    assert text.count("<svg") == 4
    assert text.count("<td>slow</td>") == 6  # in both settings once over the curve and for each accuracy at the end
    assert "## Strength 0.95" in markdown.read_text(encoding="utf-8")


def test_the_pictures_show_each_way_but_the_one_without_context() -> None:
    setting = probed_settings()[0]
    assert "accuracy of sft, slow, good, with 95 % intervals; the reference is sft." in ends_chart(setting)
    titles = [panel.get_title() for panel in curves_chart(setting).axes if panel.get_title()]
    assert titles == ["sft", "slow", "good"]
