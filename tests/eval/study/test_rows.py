"""Rows of a study: read from a training's log, kept in a file of a row a line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from eval.study.rows import read_rows, rows_of, rows_of_run, write_rows
from eval.study.study import combinations
from tests.eval.study.test_study import study_in


def test_each_evaluation_gives_a_row_a_way_of_answering(tmp_path: Path) -> None:
    one = combinations(study_in(tmp_path), tmp_path)[0]
    one.run.mkdir(parents=True)
    shares = {
        f"eval_{way}_{subset}": share
        for way, share in (("plain", 0.5), ("debiased", 0.25), ("imagined", 0.0))
        for subset in ("aligned", "conflict")
    }
    entry = {"step": 2, "eval_n": 30, "eval_alpha": 0.5, "eval_train_seconds": 3.0004, "eval_train_cpu_seconds": 2.0}
    history = [{"step": 1, "loss": 2.0}, {**entry, **shares}]
    (one.run / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    rows = rows_of_run(one)
    assert [row["decoder"] for row in rows] == ["plain", "d2e:alpha=0.5", "without_context"]
    assert rows[1] == {
        "seed": 3, "strength": 0.5, "data": "as-is", "way": "sft", "decoder": "d2e:alpha=0.5", "samples": 128,
        "step": 2, "aligned": 0.25, "conflict": 0.25, "n": 30, "seconds": 3.0, "cpu_seconds": 2.0,
    }  # fmt: skip
    assert rows_of(rows, one.values) == rows
    assert rows_of(rows, {"seed": "4"}) == []


def test_a_run_without_tagged_rows_is_refused(tmp_path: Path) -> None:
    one = combinations(study_in(tmp_path), tmp_path)[0]
    one.run.mkdir(parents=True)
    (one.run / "trainer_state.json").write_text(json.dumps({"log_history": [{"step": 1, "loss": 2.0}]}))
    with pytest.raises(UserError, match="no evaluation with an accuracy by subset"):
        rows_of_run(one)


def test_the_file_has_a_row_a_line_and_a_broken_one_is_refused(tmp_path: Path) -> None:
    rows = [{"seed": 0, "step": 1}, {"seed": 1, "step": 1}]
    file = tmp_path / "folder" / "rows.json"
    assert read_rows(file) == []
    write_rows(rows, file)
    assert read_rows(file) == rows
    assert len(file.read_text().splitlines()) == 4
    file.write_text("[1, 2]")
    with pytest.raises(UserError, match="expected a list of rows"):
        read_rows(file)
    file.write_text("[")
    with pytest.raises(UserError, match="not JSON"):
        read_rows(file)
