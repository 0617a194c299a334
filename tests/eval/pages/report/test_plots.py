"""Radars are drawn to scale."""

from __future__ import annotations

import math
import re

import pytest

from eval.pages.report.plots import outer_ring, radar_chart


def polygons(svg: str) -> list[list[tuple[float, float]]]:
    """Corners of the thick lines, one list a run."""
    paths = re.findall(r'<path d="([^"]*)"[^>]*style="fill: none; [^"]*stroke-width: 1.6', svg)
    drawn = []
    for path in paths:
        numbers = re.findall(r"[ML] ([-\d.]+) ([-\d.]+)", path)
        drawn.append([(float(x), float(y)) for x, y in numbers])
    return [corners for corners in drawn if len(corners) > 3]  # fewer are the legend's


def test_a_radar_is_drawn_to_scale() -> None:
    scores = [[0.4, 0.8], [0.4, 0.2], [0.4, 0.6], [0.4, 0.1]]  # the first run is the same everywhere
    even, other = polygons(str(radar_chart("F1", list("NESW"), ["even", "other"], scores)))
    assert even[0] == even[-1]
    centre = tuple(sum(axis) / 4 for axis in zip(*even[:4], strict=True))
    unit = math.dist(even[0], centre)
    for corner, (_, value) in zip(other[:4], scores, strict=True):
        assert math.dist(corner, centre) / unit == pytest.approx(value / 0.4, rel=1e-3)
    north, east = other[0], other[1]
    assert north[1] < centre[1]
    assert east[0] > centre[0], "clockwise from the top"


def test_runs_differ_by_more_than_colour() -> None:
    svg = str(radar_chart("F1", list("abc"), ["one", "two"], [[0.1, 0.2]] * 3))
    dashes = re.findall(r"stroke-dasharray: ([^;\"]*)[^\"]*stroke-width: 1.6|stroke-width: 1.6", svg)
    assert len(set(dashes)) > 1
    markers = re.findall(r'<defs>\s*<path id="[^"]*" d="([^"]*)"', svg)
    assert len(set(markers)) >= 2


def test_the_rim_is_the_next_ring_above_all_scores() -> None:
    assert [outer_ring([[score]]) for score in (0.0, 0.2, 0.21, 0.6, 0.95, 1.0)] == [20, 20, 40, 60, 100, 100]


def test_two_axes_are_no_radar() -> None:
    with pytest.raises(ValueError, match="at least 3"):
        radar_chart("F1", ["a", "b"], ["run"], [[0.5], [0.5]])
