"""A sweep's table: equal points share the best mean, and what is not scored is a dash."""

from __future__ import annotations

import json
from pathlib import Path

from eval.sweep.results import results_table, write_results
from tests.eval.fake_sweeps import make_sweep


def test_the_table_has_a_row_for_each_point(tmp_path: Path) -> None:
    sweep, results = make_sweep(tmp_path)
    lines = [
        [cell.strip() for cell in line.split(" | ")]
        for line in results_table(sweep.axes, results).markdown().splitlines()
    ]
    assert [line[-1].strip("| ") for line in lines[2:]] == [
        "not scored", "scored", "scored", "same as debias=false,alpha=0.1",
    ]  # fmt: skip
    assert [line[2].split()[0] for line in lines[2:]] == ["–", "**100.0**", "66.7", "66.7"]
    assert lines[0][0].strip("| ") == "debias"


def test_of_rows_with_subsets_the_table_has_conflict_and_aligned_side_by_side(tmp_path: Path) -> None:
    sweep, results = make_sweep(tmp_path, tagged=True)
    head, _, *lines = [
        [cell.strip(" |") for cell in line.split(" | ")]
        for line in results_table(sweep.axes, results).markdown().splitlines()
    ]
    assert head == ["debias", "alpha", "conflict", "aligned", "gap", "habit rate", "unparsed", "status"]
    assert [[cell.split()[0] for cell in line[2:6]] for line in lines] == [
        ["–", "–", "–", "–"],
        ["**100.0**", "100.0", "0.0", "0.0"],
        ["50.0", "100.0", "50.0", "50.0"],
        ["50.0", "100.0", "50.0", "50.0"],
    ]
    write_results(sweep, results)
    written = json.loads((sweep.out / "results.json").read_text())
    assert "subsets" not in written[0]
    assert written[2]["subsets"]["gap"]["mean"] == 0.5
