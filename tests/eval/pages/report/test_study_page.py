"""The page of a study: verdicts first, two pictures and a table a setting."""

from __future__ import annotations

from pathlib import Path

from eval.pages.report.study_page import curves_chart, ends_chart, write_study_page
from eval.study.study import Study
from eval.study.tables import settings
from tests.eval.study.test_summary import study_rows
from tests.eval.study.test_tables import STUDY


def test_the_page_says_what_is_decided_before_it_shows_it(tmp_path: Path) -> None:
    rows = [{**row, "strength": strength} for strength in (0.5, 0.95) for row in study_rows()]
    found = settings(Study.model_validate(STUDY), rows)
    text = write_study_page("Study: habit", found, tmp_path / "study.html").read_text(encoding="utf-8")
    assert text.index("good reads more than sft") < text.index("<svg")
    assert text.count("<svg") == 4
    assert text.count("<td>slow</td>") == 2


def test_the_pictures_show_each_way_but_the_one_without_context() -> None:
    rows = [{**row, "strength": 0.5} for row in study_rows()]
    (setting,) = settings(Study.model_validate(STUDY), rows)
    labels = ends_chart(setting).axes[0].get_legend_handles_labels()[1]
    assert labels == ["sft — reference", "slow", "good"]
    titles = [panel.get_title() for panel in curves_chart(setting).axes if panel.get_title()]
    assert titles == ["sft", "slow", "good"]
