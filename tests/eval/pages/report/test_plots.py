"""Plots: bars and points stand where the numbers are, and the picture of the page is described in words."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib.text import Annotation

from d2e_sft.util.errors import UserError
from d2e_sft.util.html.figures import inline_svg
from eval.compare.compare import compare_measures
from eval.compare.measures import measure_scores
from eval.compare.runs import load_runs
from eval.pages.report.page import render_page
from eval.pages.report.plots import (
    BarPart,
    ReadingPoint,
    check_plot,
    dot_figure,
    reading_chart,
    reading_figure,
    scores_figure,
    stacked_figure,
    write_plot,
)
from eval.score.statistics import Interval
from tests.eval.compare.rows import accuracy, habit_rows
from tests.factories import make_run, prediction

FOUND = compare_measures("wiqa", {"A": accuracy([1, 1, 0, 1]), "B": accuracy([1, 0, 0, 0])})


HALF = Interval(mean=0.5, low=0.4, high=0.6)


def dots() -> str:
    return str(inline_svg(dot_figure("F1", ["all"], ["one", "two"], [[HALF, HALF]]), "F1"))


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
    parts = [BarPart("a", "first", "#cccccc", ""), BarPart("b", "second", "#999999", "")]
    [axes] = stacked_figure({"group": {"one": {"a": 1, "b": 3}, "other": {"a": 2, "b": 0}}}, parts, "percent").axes
    spans = [[(bar.get_x(), bar.get_width()) for bar in container] for container in axes.containers]
    assert spans == [[(0, 25), (0, 100)], [(25, 75), (100, 0)]]


def point(label: str, aligned: float, conflict: float) -> ReadingPoint:
    """A run whose intervals reach 5 points to each side, but not beyond 0 and 100."""
    first, second = (Interval(v, max(0.0, v - 0.05), min(1.0, v + 0.05)) for v in (aligned, conflict))
    return ReadingPoint(label, first, second)


def names(*points: ReadingPoint, reference: bool = True) -> dict[str, tuple[float, float]]:
    """Where each name stands."""
    texts = reading_figure(points, reference=reference).axes[0].texts
    return {text.get_text(): text.xyann for text in texts if isinstance(text, Annotation) and text.arrow_patch}


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


def test_names_of_points_that_lie_together_do_not_touch_and_stay_in_the_picture() -> None:
    points = [point(f"run {n}", 0.97 + n / 1000, [0.0, 0.5, 1.0][n % 3]) for n in range(12)]
    many = [point(f"run {n}", 0.97, 0.9) for n in range(60)]
    for group, apart in ((points, 4.5), (many, 0)):
        heights = sorted(height for _, height in names(*group).values())
        assert min(b - a for a, b in pairwise(heights)) >= apart
        assert 0 <= heights[0] < heights[-1] <= 100


def test_the_picture_is_read_out_with_its_numbers() -> None:
    svg = str(reading_chart([point("sft", 0.98, 0.46), point("d<2>e", 1.0, 0.0)]))
    ElementTree.fromstring(svg.replace("<svg", '<svg xmlns:xlink="x"', 1))
    assert "reference" not in str(reading_chart([point("alone", 0.98, 0.46)]))
    assert "the reference is sft. sft: conflict 46.0, aligned 98.0; d&lt;2&gt;e: conflict 0.0, aligned 100.0" in svg


@pytest.fixture(scope="module")
def tagged(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tagged")
    rights = {"sft": (34, 16), "d2e": (40, 0), "teacher": (39, 30)}
    trained = {"teacher": {"recipe": "model: {}"}}
    runs = [
        make_run(folder / name, [*habit_rows(*right), prediction(1, True)], **trained.get(name, {}))
        for name, right in rights.items()
    ]
    return render_page(load_runs(runs))


def test_the_section_comes_first_and_the_long_tables_are_folded(tagged: str) -> None:
    sections = re.findall(r'<(?:section|details) id="([a-z-]+)"', tagged)
    assert sections[:5] == ["reading", "subsets", "faithfulness", "by-group", "scores"]
    assert sections.index("by-group") < sections.index("samples")
    assert tagged.index("uses the context more") < tagged.index("<nav"), "the verdict comes before everything"
    assert "Conflict accuracy against aligned accuracy of sft, d2e, teacher" in tagged
    assert tagged.index('<details id="by-group">') < tagged.index("Dots on one axis")
    anchors = re.findall(r'<a href="#([a-z-]+)">', tagged)
    assert anchors[:5] == ["reading", "subsets", "faithfulness", "by-group", "samples"]


def test_the_page_opens_with_the_trained_run_on_conflict_rows_in_words_and_numbers(tagged: str) -> None:
    sentence = "teacher answers 35.0 points more of the conflict rows right than sft; it uses the context more."
    assert f'<p class="headline">{sentence}</p>' in tagged
    assert re.findall(r'<span class="large">(.*?)</span>', tagged) == ["75.0 %", "22.5", "+35.0", "80"]
    assert "habit gap in points, aligned − conflict (sft: 45.0)" in tagged
    assert "rows: 40 aligned + 40 conflict" in tagged


def test_the_section_says_the_verdicts_and_what_is_left_out(tagged: str) -> None:
    verdicts = re.findall(r"<li>(\w+ against sft: .*?)</li>", tagged)
    assert [line.rpartition(": ")[2] for line in verdicts] == ["uses the context less", "uses the context more"]
    assert "Samples without such a tag, which are left out here: 1." in tagged
