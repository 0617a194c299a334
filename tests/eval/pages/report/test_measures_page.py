"""The page of a system's results: the verdict first, what changed item by item, and everything escaped."""

from __future__ import annotations

from pathlib import Path

from eval.compare.measures.runs import compare_runs_by_measures, load_measured
from eval.pages.report.measures_page import changed_items, write_measures_page
from tests.eval.compare.measures.results import accuracy, save_result


def test_the_page_says_the_verdict_and_what_changed(tmp_path: Path) -> None:
    paths = [
        save_result(tmp_path / "sft", [*accuracy([1, 0, 0, 1]), *accuracy([1, 1, 1, 1], name="second")], alpha=0.0),
        save_result(tmp_path / "<b>d2e", [*accuracy([0, 1, 1, 1]), *accuracy([1, 0, 1, 1], name="second")], alpha=0.5),
    ]
    runs = load_measured(paths)
    assert runs is not None
    [changed] = changed_items(runs, compare_runs_by_measures(runs))
    assert (changed.better, changed.worse) == (2, 1)
    assert sorted(changed.listed) == [("q0", 1, 0), ("q1", 0, 1), ("q2", 0, 1)]
    write_measures_page(runs, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "&lt;b&gt;d2e against sft: accuracy +25.0 [" in page
    assert page.index("not decided with 4 questions") < page.index("<h2>Scores</h2>")
    assert "2 better, 1 worse, 1 as before" in page
    assert "<b>d2e" not in page
    assert "<dt>alpha</dt>" in page
