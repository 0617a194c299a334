"""Plots: what a chart is drawn with is told apart by more than colour, and its colours are the page's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from d2e_sft.util.errors import UserError
from d2e_sft.util.html.figures import INK, inline_svg
from eval.compare.compare import compare_measures
from eval.compare.measures import measure_scores
from eval.pages.report.plots import (
    Curve,
    Part,
    check_plot,
    dot_figure,
    line_chart,
    scores_figure,
    stacked_figure,
    write_plot,
)
from eval.score.statistics import Interval
from tests.eval.compare.rows import accuracy

FOUND = compare_measures("wiqa", {"A": accuracy([1, 1, 0, 1]), "B": accuracy([1, 0, 0, 0])})


HALF = Interval(mean=0.5, low=0.4, high=0.6)


def dots() -> str:
    return str(inline_svg(dot_figure("F1", ["all"], ["one", "two"], [[HALF, HALF]]), "F1"))


def test_runs_differ_by_more_than_colour() -> None:
    svg = str(line_chart("Loss", [Curve(n, name, [(1, 2.0), (2, 1.0)]) for n, name in enumerate(("one", "two"))]))
    dashes = re.findall(r"stroke-dasharray: ([^;\"]*)[^\"]*stroke-width: 1.6|stroke-width: 1.6", svg)
    assert len(set(dashes)) > 1
    markers = {line.get_marker() for line in dot_figure("F1", ["all"], ["a", "b"], [[HALF, HALF]]).axes[0].lines}
    assert {"o", "s"} <= markers


def test_what_is_black_or_white_on_paper_takes_the_colours_of_the_page() -> None:
    svg = dots()
    assert "stroke: var(--ink, #000000)" in svg
    assert "fill: var(--ground, #ffffff)" in svg
    assert "fill: var(--blue, #0072b2)" in svg, "lighter on a dark page"
    figure = Figure(figsize=(2, 2))
    figure.subplots().plot([0.5], [0.5], marker="s", color=INK, linestyle="none")
    markers = re.findall(r'<use [^>]*style="([^"]*)"', str(inline_svg(figure, "a marker")))
    assert any("fill: var(--ink" in style and "stroke: var(--ink" in style for style in markers), "filled parts, too"
    fixed = set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", svg))
    assert "#e69f00" in svg, "a run keeps its colour"
    assert not fixed & {"#000000", "#222222", "#dddddd", "#ffffff"}


def test_dots_of_measures_stand_at_the_scores_with_their_intervals() -> None:
    [axes] = scores_figure(FOUND).axes
    assert [list(container[0].get_xdata()) for container in axes.containers] == [[75], [25]]
    (bar,) = axes.containers[0][2]
    known = measure_scores(FOUND)["accuracy", "questions"][0]
    assert bar.get_segments()[0][:, 0].tolist() == pytest.approx([100 * known.low, 100 * known.high])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["accuracy\n4 questions"]


@pytest.mark.parametrize(("name", "begins"), [("a.svg", b"<?xml"), ("a.png", b"\x89PNG"), ("a.pdf", b"%PDF")])
def test_the_name_of_the_file_gives_the_format(tmp_path: Path, name: str, begins: bytes) -> None:
    write_plot(FOUND, tmp_path / "new" / name)
    assert (tmp_path / "new" / name).read_bytes().startswith(begins)


def test_another_name_is_refused() -> None:
    with pytest.raises(UserError, match=r"ends in \.svg, \.png, \.pdf"):
        check_plot(Path("plot.html"))


def test_the_parts_of_a_stacked_bar_stand_side_by_side_and_fill_it() -> None:
    parts = [Part("a", "first", "#cccccc", ""), Part("b", "second", "#999999", "")]
    [axes] = stacked_figure({"group": {"one": {"a": 1, "b": 3}, "other": {"a": 2, "b": 0}}}, parts, "percent").axes
    spans = [[(bar.get_x(), bar.get_width()) for bar in container] for container in axes.containers]
    assert spans == [[(0, 25), (0, 100)], [(25, 75), (100, 0)]]
