"""`d2e table` as a command."""

from __future__ import annotations

import json
from pathlib import Path

from tests.eval.compare.rows import accuracy, save_result
from tests.eval.compare.test_paper import balanced
from tests.eval.paper_runs import printed, run


def test_a_system_has_a_table_of_its_measures(tmp_path: Path) -> None:
    for name, right in (("sft", [1, 0, 0, 0]), ("d2e", [1, 1, 1, 0])):
        save_result(tmp_path / name, accuracy(right))
    runs = (tmp_path / "sft", tmp_path / "d2e")
    assert "| accuracy (4) | d2e " in printed(*runs, "--format", "markdown")
    assert balanced(printed(*runs, "--format", "latex"))
    printed(*runs, "--out", tmp_path / "t.json")
    assert json.loads((tmp_path / "t.json").read_text())["labels"] == ["sft", "d2e"]
    assert "d2e against sft: accuracy +50.0" in printed(*runs, "--format", "text")
    folder = save_result(run(tmp_path / "run"), accuracy([1, 0]))  # rows are shown unless the system is named
    assert "PIPER" not in printed(folder, "--bench", "wiqa")
    assert "accuracy" in printed(folder, "--bench", "wiqa")
    assert "accuracy (2)" not in printed(folder)
