"""Plots: bars and points stand where the numbers are, and the picture of the page is described in words."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from eval.compare.compare import compare_measures
from eval.compare.measures import measure_scores
from eval.pages.report.plots import (
    BarPart,
    ReadingPoint,
    reading_chart,
    reading_figure,
    scores_figure,
    stacked_figure,
)
from eval.score.statistics import Interval
from tests.eval.compare.rows import accuracy

FOUND = compare_measures("wiqa", {"A": accuracy([1, 1, 0, 1]), "B": accuracy([1, 0, 0, 0])})


def test_dots_of_measures_stand_at_the_scores_with_their_intervals() -> None:
    [axes] = scores_figure(FOUND).axes
    assert [list(container[0].get_xdata()) for container in axes.containers] == [[75], [25]]
    (bar,) = axes.containers[0][2]
    known = measure_scores(FOUND)["accuracy", "questions"][0]
    assert bar.get_segments()[0][:, 0].tolist() == pytest.approx([100 * known.low, 100 * known.high])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["accuracy\n4 questions"]


def test_the_parts_of_a_stacked_bar_stand_side_by_side_and_fill_it() -> None:
    parts = [BarPart("a", "first", "#cccccc", ""), BarPart("b", "second", "#999999", "")]
    [axes] = stacked_figure({"group": {"one": {"a": 1, "b": 3}, "other": {"a": 2, "b": 0}}}, parts, "percent").axes
    spans = [[(bar.get_x(), bar.get_width()) for bar in container] for container in axes.containers]
    assert spans == [[(0, 25), (0, 100)], [(25, 75), (100, 0)]]


def point(label: str, aligned: float, conflict: float) -> ReadingPoint:
    """A run whose intervals reach 5 points to each side, but not beyond 0 and 100."""
    first, second = (Interval(v, max(0.0, v - 0.05), min(1.0, v + 0.05)) for v in (aligned, conflict))
    return ReadingPoint(label, first, second)


def test_a_point_stands_at_its_aligned_and_conflict_accuracy_with_both_intervals() -> None:
    axes = reading_figure([point("sft", 0.98, 0.46), point("d2e", 1.0, 0.0)], reference=True).axes[0]
    assert axes.get_xlim() == axes.get_ylim() == (0, 100)
    places = [container[0].get_xydata().tolist()[0] for container in axes.containers]
    assert places == [[98.0, 46.0], [100.0, 0.0]]
    across, up = (bars.get_segments()[0] for bars in axes.containers[0][2])
    assert across[:, 0].tolist() == pytest.approx([93.0, 100.0])
    assert up[:, 1].tolist() == pytest.approx([41.0, 51.0])
    diagonal = next(line for line in axes.lines if line.get_linestyle() == "--")
    assert diagonal.get_xydata().tolist() == [[0, 0], [100, 100]]


def test_the_picture_is_read_out_with_its_numbers() -> None:
    svg = str(reading_chart([point("sft", 0.98, 0.46), point("d<2>e", 1.0, 0.0)]))
    ElementTree.fromstring(svg.replace("<svg", '<svg xmlns:xlink="x"', 1))
    assert "reference" not in str(reading_chart([point("alone", 0.98, 0.46)]))
    assert "the reference is sft. sft: conflict 46.0, aligned 98.0; d&lt;2&gt;e: conflict 0.0, aligned 100.0" in svg
