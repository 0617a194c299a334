"""A sweep's table: equal points share the best mean, and what is not scored is a dash."""

from __future__ import annotations

from pathlib import Path

import pytest

from eval.pages.report.sweep_page import drawn_axis, sweep_lines
from eval.sweep.grid import grid, parse_axes
from eval.sweep.record import DONE_FILE, Sweep
from eval.sweep.results import PointResult, collect, results_table
from tests.eval.fake_runs import choice, make_run, prediction


@pytest.fixture
def swept(tmp_path: Path) -> tuple[Sweep, list[PointResult]]:
    """Two of α 0.1, 0.5 and 1.0 are scored; without debiasing all are alike."""
    recipe, out = tmp_path / "recipe.yaml", tmp_path / "out"
    recipe.write_text("model: {name: tiny}\ndata: {train: train.jsonl}\ntrain: {output_dir: unused}\n")
    axes = parse_axes(["d2e.debias=true,false", "d2e.alpha=0.1,1.0"])
    sweep = Sweep(str(recipe), axes, grid(str(recipe), axes, out), out, ("--bench", "mini"), [], [])
    for number, point in enumerate(sweep.to_score[1:]):
        rows = [prediction(1, True), prediction(2, number == 0), choice(3, True, relation="causal")]
        make_run(out / point.name, rows)
        (out / point.name / DONE_FILE).write_text("mini\n")
    return sweep, collect(sweep)


def test_the_table_has_a_row_for_each_point(swept: tuple[Sweep, list[PointResult]]) -> None:
    sweep, results = swept
    lines = [[cell.strip() for cell in line.split(" | ")] for line in results_table(sweep.axes, results).splitlines()]
    assert [line[-1].strip("| ") for line in lines[2:]] == [
        "not scored", "scored", "scored", "same as debias=false,alpha=0.1",
    ]  # fmt: skip
    assert [line[2].split()[0] for line in lines[2:]] == ["–", "**100.0**", "66.7", "66.7"]
    assert lines[0][0].strip("| ") == "debias"


def test_a_line_of_the_plot_is_a_combination_of_the_other_axes(swept: tuple[Sweep, list[PointResult]]) -> None:
    sweep, results = swept
    assert drawn_axis(sweep.axes).key == "d2e.alpha"
    lines = sweep_lines(sweep.axes, results)
    assert [(line.label, line.places) for line in lines] == [("debias=true", [1.0]), ("debias=false", [0.1, 1.0])]
