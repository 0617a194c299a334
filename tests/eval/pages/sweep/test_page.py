"""A sweep's page: verdicts first, a line of the plot for each combination of the other axes, then the table."""

from __future__ import annotations

from pathlib import Path

from eval.pages.sweep.page import curves_chart, drawn_axis, ends_chart, reading_points, sweep_lines, write_sweep_page
from tests.eval.fake_sweeps import make_sweep, planned, probed_settings


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
