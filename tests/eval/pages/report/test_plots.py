"""Plots: what a chart is drawn with is told apart by more than colour, and its colours are the page's."""

from __future__ import annotations

import re

from eval.pages.report.plots import Curve, bar_chart, line_chart
from eval.score.statistics import Interval


def test_runs_differ_by_more_than_colour() -> None:
    svg = str(line_chart("Loss", [Curve(n, name, [(1, 2.0), (2, 1.0)]) for n, name in enumerate(("one", "two"))]))
    dashes = re.findall(r"stroke-dasharray: ([^;\"]*)[^\"]*stroke-width: 1.6|stroke-width: 1.6", svg)
    assert len(set(dashes)) > 1
    half = Interval(mean=0.5, low=0.4, high=0.6)
    assert "url(#" in str(bar_chart("F1", ["all"], ["one", "two"], [[half, half]])), (
        "the second run's bars are hatched"
    )


def test_what_is_black_or_white_on_paper_takes_the_colours_of_the_page() -> None:
    half = Interval(mean=0.5, low=0.4, high=0.6)
    svg = str(bar_chart("F1", ["all"], ["one", "two"], [[half, half]]))
    assert "stroke: var(--ink, #000000)" in svg
    assert "fill: var(--ground, #ffffff)" in svg
    assert "fill: var(--blue, #0072b2)" in svg, "lighter on a dark page"
    fixed = set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", svg))
    assert "#e69f00" in svg, "a run keeps its colour"
    assert not fixed & {"#000000", "#222222", "#dddddd", "#ffffff"}
