"""Rows of the results file, tables and the page of a sweep."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from d2e_sft.util.errors import UserError
from eval.compare.seeds import compare_seeds, load_seeds
from eval.pages.sweep import (
    curves_chart,
    drawn_axis,
    onset_chart,
    plateaus_chart,
    reading_points,
    sweep_lines,
    write_sweep_page,
)
from eval.sweep.cells import point_scores, read_all_rows, read_rows, write_rows
from eval.sweep.results import collect, over_seeds, results_table, write_results
from tests.eval.fake_sweeps import make_sweep, planned, probed_settings
from tests.factories import make_run, prediction


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


def test_the_results_file_keeps_the_points_of_other_sweeps(tmp_path: Path) -> None:
    sweep, results = make_sweep(tmp_path)
    others = [{"name": "another sweep's point", "n": 3}, {"seed": 0, "step": 1}]
    write_rows([*others, {"name": results[0].point.name, "n": 0}], sweep.results)
    write_results(sweep, results)
    written = read_all_rows(sweep.results)
    assert written[:2] == others
    assert [row["name"] for row in written[2:]] == [result.point.name for result in results]


def test_sweeps_of_two_folders_keep_their_points_in_one_file(tmp_path: Path) -> None:
    file = tmp_path / "both.json"
    for name, right in (("one", True), ("other", False), ("one", True)):
        (tmp_path / name).mkdir(exist_ok=True)
        sweep = planned(tmp_path / name, "d2e.alpha=0.1,1.0", results=str(file))
        for point in sweep.work:
            make_run(sweep.out / point.name, [prediction(1, right)])
        write_results(sweep, collect(sweep))
    kept = [(Path(row["out"]).parent.name, row["name"], row["scores"]["mean"]["mean"]) for row in read_all_rows(file)]
    assert kept == [(name, f"alpha={a}", mean) for name, mean in (("other", 0), ("one", 1)) for a in ("0.1", "1.0")]


def test_a_comparison_may_begin_with_a_point_that_equals_another(tmp_path: Path) -> None:
    text = (
        "axes: {way: {d2e: {}, sft: {d2e.debias: false, d2e.distill: false}}, d2e.alpha: ['0.1', '1.0']}\n"
        "comparisons: {main: ['sft,alpha=1.0', 'd2e,alpha=1.0']}\n"
    )
    sweep = planned(tmp_path, text=text)
    for number, point in enumerate(sweep.work):
        make_run(sweep.out / point.name, [prediction(n, (n + number) % 3 > 0) for n in range(12)])
    results = collect(sweep)
    assert [result.status for result in results][-1] == "same as sft,alpha=0.1"
    assert sweep.out / "main.md" in write_results(sweep, results)


def test_a_point_has_the_scores_of_its_own_benchmark_and_setting_alone(tmp_path: Path) -> None:
    sweep = planned(tmp_path, "d2e.alpha=0.1,1.0")
    point = sweep.points[0]
    for bench in ("mini-few_shot", "mini-completion", "mini-hard"):
        make_run(sweep.out / point.name, [prediction(1, False)], bench=bench)
    assert point_scores(sweep, point) is None
    make_run(sweep.out / point.name, [prediction(1, True)], bench="mini")
    few = planned(tmp_path, "d2e.alpha=0.1,1.0", eval_args="--setting=few_shot")
    assert [point_scores(one, point).overall.mean.mean for one in (sweep, few)] == [1, 0]


def test_ways_of_training_are_compared_over_seeds_like_their_runs(tmp_path: Path) -> None:
    sweep = planned(tmp_path, "train.seed=0,1,2", "d2e.objective=sft,d2e")
    for number, point in enumerate(sweep.points):
        make_run(sweep.out / point.name, [prediction(n, n < 2 + number * number) for n in range(30)])
        point.recipe.save(sweep.out / point.name)
    results = collect(sweep)
    [found] = over_seeds(sweep, results)
    runs = compare_seeds(load_seeds([sweep.out / f"seed=*,objective={name}" for name in ("sft", "d2e")], None))
    assert found.labels == ("sft", "d2e")
    columns = ["measure", "mean", "low", "high", "change", "p"]
    pd.testing.assert_frame_equal(found.scores[columns], runs.scores[columns])
    write_sweep_page(sweep, results, [], [found])
    for name in ("results.html", "results.md"):
        assert "95 % t intervals over 3 seeds" in (sweep.out / name).read_text(encoding="utf-8")
    one_is_missing = [result for result in results if result.point.name != "seed=2,objective=sft"]
    assert [(one.labels, one.seeds) for one in over_seeds(sweep, one_is_missing)] == [
        (("sft",), [0, 1]), (("d2e",), [0, 1, 2])
    ]  # fmt: skip
    assert over_seeds(*make_sweep(tmp_path)) == []


def test_seeds_of_builds_alone_are_seeds(tmp_path: Path) -> None:
    text = "build: --datasets habit --seed {seed}\naxes: {seed: [3, 4]}\nruns: {sft: {d2e.objective: sft}, d2e: {}}\n"
    sweep = planned(tmp_path, text=text, bench="{build}")
    for point in sweep.points:
        data = sweep.data_of(point)
        data.mkdir(parents=True, exist_ok=True)
        make_run(sweep.out / point.name, [prediction(n, n < 2) for n in range(30)], bench=data.name)
    [found] = over_seeds(sweep, collect(sweep))
    assert found.seeds == [3, 4]


def test_rows_with_subsets_are_shown_as_conflict_against_aligned(tmp_path: Path) -> None:
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
    points = [(point.label, point.conflict.mean, point.aligned.mean) for point in reading_points(results)]
    assert points == [("debias=true,alpha=1.0", 1.0, 1.0), ("debias=false,alpha=0.1", 0.5, 1.0)]
    assert [score.mean for line in sweep_lines(sweep, results) for score in line.scores] == [1.0, 0.5, 0.5]
    write_results(sweep, results)
    written = json.loads((sweep.out / "results.json").read_text())["rows"]
    assert "subsets" not in written[0]
    assert written[2]["subsets"]["gap"]["mean"] == 0.5
    text = write_sweep_page(sweep, results, [])[1].read_text(encoding="utf-8")
    assert text.index("<h2>Does it use the context?</h2>") < text.index("<h2>Conflict accuracy against d2e.alpha</h2>")


def test_a_line_of_the_plot_is_a_combination_of_the_other_axes(tmp_path: Path) -> None:
    sweep, results = make_sweep(tmp_path)
    assert drawn_axis(sweep) == "d2e.alpha"
    lines = sweep_lines(sweep, results)
    assert [(line.label, line.places) for line in lines] == [("debias=true", [1.0]), ("debias=false", [0.1, 1.0])]


def test_a_probe_is_shown_as_verdicts_then_curves(tmp_path: Path) -> None:
    sweep = planned(
        tmp_path, text="axes: {seed: [0, 1], way: [sft, slow]}\nprobe: {reference: {way: sft}}", bench=None
    )
    markdown, page = write_sweep_page(sweep, [], probed_settings())
    text = page.read_text(encoding="utf-8")
    assert text.index("good ends higher than sft") < text.index("<svg")
    assert text.count("<svg") == 6
    assert text.count("<td>slow</td>") == 8  # in both settings at each threshold, and for each accuracy
    assert "## Strength 0.95" in markdown.read_text(encoding="utf-8")


def test_the_pictures_show_each_way_but_the_one_without_context() -> None:
    setting = probed_settings()[0]
    assert "accuracy of sft, slow, good, with 95 % intervals; the reference is sft." in plateaus_chart(
        setting, ["sft", "slow", "good"]
    )
    panel, below = onset_chart(setting, ["sft", "good"], threshold=0.5).axes
    lines = [line for line in panel.get_lines() if line.get_linestyle() != "None"]
    assert [np.max(line.get_ydata()) for line in lines] == pytest.approx([200 / 3, 100])
    assert [text.get_text() for text in below.texts][:2] == ["3", "3"], "all are at risk when training begins"
    titles = [panel.get_title() for panel in curves_chart(setting).axes if panel.get_title()]
    assert titles == ["sft", "slow", "good"]
