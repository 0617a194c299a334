"""The results file: rows of the probe, from a training's log, and scored points; and the table of points."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from d2e_sft.config.recipe import load_recipe
from d2e_sft.util.errors import UserError
from eval.sweep.curves import Row, read_rows, refuse_other_overrides, rows_of, rows_of_run, write_rows
from eval.sweep.results import collect, results_table, write_results
from tests.eval.fake_sweeps import make_sweep


def rows_of_log(run: Path, history: list[dict[str, Any]]) -> list[Row]:
    (run / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    recipe = load_recipe("smollm2-135m-habit/d2e", [f"train.output_dir={run}", "train.batch_size=64"])
    return rows_of_run(run, recipe, {"seed": "3", "way": "sft"}, {})


def test_each_evaluation_gives_a_row_per_way_of_answering(tmp_path: Path) -> None:
    shares = {
        f"eval_{way}_{subset}": share
        for way, share in (("plain", 0.5), ("debiased", 0.25), ("imagined", 0.0))
        for subset in ("aligned", "conflict")
    }
    entry = {"step": 2, "eval_n": 30, "eval_alpha": 0.5, "eval_train_seconds": 3.0004, "eval_train_cpu_seconds": 2.0}
    history = [{"step": 1, "loss": 2.0}, {**entry, **shares}]
    rows = rows_of_log(tmp_path, history)
    assert [row["decoder"] for row in rows] == ["plain", "d2e:alpha=0.5", "without_context"]
    assert rows[1] == {
        "seed": 3, "way": "sft", "decoder": "d2e:alpha=0.5", "samples": 128,
        "step": 2, "aligned": 0.25, "conflict": 0.25, "n": 30, "seconds": 3.0, "cpu_seconds": 2.0,
    }  # fmt: skip
    assert rows_of(rows, {"seed": "3"}) == rows
    assert rows_of(rows, {"seed": "4"}) == []
    with pytest.raises(UserError, match="no accuracy by subset"):
        rows_of_log(tmp_path, [{"step": 1, "loss": 2.0}])


def test_the_file_has_a_row_a_line_and_a_broken_one_is_refused(tmp_path: Path) -> None:
    rows = [{"seed": 0, "step": 1}, {"seed": 1, "step": 1}]
    file = tmp_path / "folder" / "rows.json"
    assert read_rows(file) == []
    write_rows(rows, file)
    assert read_rows(file) == rows
    whole = file.read_text()
    assert len(whole.splitlines()) == 5
    edited = {"was changed": whole.replace('"step": 1', '"step": 2'), "has no checksums": '{"rows": []}'}
    for said, text in {**edited, "not the rows of a sweep": "[1, 2]", "Invalid JSON": "["}.items():
        file.write_text(text)
        with pytest.raises(UserError, match=said):
            read_rows(file)


def test_rows_of_other_settings_are_kept_in_another_file(tmp_path: Path) -> None:
    rows = [{"seed": 0, "step": 1, "overrides": {"train.seed": "1"}}]
    refuse_other_overrides(rows, {"train.seed": "1"}, tmp_path)
    with pytest.raises(UserError, match="this call asks for the file's own settings") as error:
        refuse_other_overrides(rows, {}, tmp_path)
    assert "has rows measured with train.seed=1" in str(error.value)


def test_the_table_has_a_row_for_each_point(tmp_path: Path) -> None:
    table = results_table(*make_sweep(tmp_path))
    assert list(table.frame["status"]) == ["not scored", "scored", "scored", "same as debias=false,alpha=0.1"]
    assert [(cell.split()[0], getattr(cell, "best", False)) for cell in table.frame["mean"]] == [
        ("–", False), ("100.0", True), ("66.7", False), ("66.7", False)
    ]  # fmt: skip
    assert list(table.frame.columns)[:2] == ["debias", "alpha"]


def test_a_point_whose_scores_were_edited_is_in_no_table(tmp_path: Path) -> None:
    sweep, results = make_sweep(tmp_path)
    write_results(sweep, results)
    file = sweep.out / sweep.work[1].name / "eval/mini/scores.json"
    file.write_text(file.read_text().replace('"mean": 1.0', '"mean": 0.9876', 1))
    with pytest.raises(UserError, match=r"scores\.json: was changed after it was written"):
        collect(sweep)


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
    written = json.loads((sweep.out / "results.json").read_text())["rows"]
    assert "subsets" not in written[0]
    assert written[2]["subsets"]["gap"]["mean"] == 0.5
