"""The one picture: points stand where their accuracies are, names do not touch, and it is first on the page."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib.text import Annotation

from eval.compare.runs import load_runs
from eval.pages.report.page import render_page
from eval.pages.report.plots import ReadingPoint, reading_chart, reading_figure
from eval.score.statistics import Interval
from tests.eval.compare.rows import habit_rows
from tests.factories import make_run, prediction, story


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


def test_the_first_point_is_marked_as_the_reference() -> None:
    assert list(names(point("sft", 0.9, 0.4), point("d2e", 0.8, 0.3))) == ["sft (reference)", "d2e"]
    assert list(names(point("sft", 0.9, 0.4), reference=False)) == ["sft"]


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


def test_conflict_rows_alone_have_a_table_and_no_picture(tmp_path: Path) -> None:
    rows = [story(n, "conflict", "garage", habit=[]) for n in range(20)]
    page = render_page(load_runs([make_run(tmp_path / "run", rows)]))
    assert '<section id="reading">' in page
    assert "Conflict accuracy against" not in page
    assert "habit rate" not in page.partition('<details id="by-group">')[0]
    untagged = render_page(load_runs([make_run(tmp_path / "untagged", [prediction(1, True)])]))
    assert "reading" not in re.findall(r'<section id="([a-z-]+)"', untagged)


def test_the_note_stands_where_no_run_does() -> None:
    def note(*points: ReadingPoint) -> tuple[float, float]:
        texts = reading_figure(points, reference=True).axes[0].texts
        (found,) = (text for text in texts if text.get_text() == "answers from habit")
        return found.get_position()

    assert note(point("sft", 0.9, 0.8)) == (45, 7)
    assert note(point("sft", 0.3, 0.08))[1] > 15, "whose name would stand upon it"
