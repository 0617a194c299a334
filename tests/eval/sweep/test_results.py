"""A sweep's table: equal points share the best score, and points that are not scored have dashes."""

from __future__ import annotations

import json
from pathlib import Path

from eval.sweep.results import results_table, write_results
from tests.eval.fake_sweeps import make_sweep


def test_the_table_has_a_row_for_each_point(tmp_path: Path) -> None:
    table = results_table(*make_sweep(tmp_path))
    assert list(table.frame["status"]) == ["not scored", "scored", "scored", "same as debias=false,alpha=0.1"]
    assert [(cell.split()[0], getattr(cell, "best", False)) for cell in table.frame["mean"]] == [
        ("–", False), ("100.0", True), ("66.7", False), ("66.7", False)
    ]  # fmt: skip
    assert list(table.frame.columns)[:2] == ["debias", "alpha"]


def test_rows_with_subsets_have_conflict_and_aligned_side_by_side(tmp_path: Path) -> None:
    sweep, results = make_sweep(tmp_path, tagged=True)
    frame = results_table(sweep, results).frame
    assert list(frame.columns) == [
        "debias", "alpha", "conflict", "aligned", "gap", "habit rate", "unparsed", "status"
    ]  # fmt: skip
    assert [[cell.split()[0] for cell in line[2:6]] for line in frame.to_numpy()] == [
        ["–", "–", "–", "–"],
        ["100.0", "100.0", "0.0", "0.0"],
        ["50.0", "100.0", "50.0", "50.0"],
        ["50.0", "100.0", "50.0", "50.0"],
    ]
    write_results(sweep, results)
    written = json.loads((sweep.out / "results.json").read_text())
    assert "subsets" not in written[0]
    assert written[2]["subsets"]["gap"]["mean"] == 0.5
