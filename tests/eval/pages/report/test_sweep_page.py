"""A sweep's plot: a line for each combination of the other axes."""

from __future__ import annotations

from pathlib import Path

from eval.pages.report.sweep_page import drawn_axis, sweep_lines, sweep_points, write_sweep_page
from tests.eval.fake_sweeps import make_sweep


def test_a_line_of_the_plot_is_a_combination_of_the_other_axes(tmp_path: Path) -> None:
    sweep, results = make_sweep(tmp_path)
    assert drawn_axis(sweep.axes).key == "d2e.alpha"
    lines = sweep_lines(sweep.axes, results)
    assert [(line.label, line.places) for line in lines] == [("debias=true", [1.0]), ("debias=false", [0.1, 1.0])]


def test_the_page_has_the_plot_and_a_row_for_each_point(tmp_path: Path) -> None:
    sweep, results = make_sweep(tmp_path)
    page, picture = write_sweep_page(sweep, results)
    text = page.read_text(encoding="utf-8")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "<h2>Score against d2e.alpha</h2>" in text
    assert text.count("same as debias=false,alpha=0.1") == 1


def test_of_rows_with_subsets_the_page_begins_with_conflict_against_aligned(tmp_path: Path) -> None:
    sweep, results = make_sweep(tmp_path, tagged=True)
    points = sweep_points(sweep.axes, results)
    assert points is not None
    assert [(p.label, p.conflict.mean, p.aligned.mean) for p in points] == [
        ("debias=true, alpha=1.0", 1.0, 1.0),
        ("debias=false, alpha=0.1", 0.5, 1.0),
    ]
    assert [score.mean for line in sweep_lines(sweep.axes, results) for score in line.scores] == [1.0, 0.5, 0.5]
    text = write_sweep_page(sweep, results)[0].read_text(encoding="utf-8")
    assert text.index("<h2>Does it read?</h2>") < text.index("<h2>Conflict accuracy against d2e.alpha</h2>")
    assert '<th scope="col" class="number">habit rate</th>' in text
