"""Predictions survive the file, and a damaged file says where."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from eval.score.predictions import read_predictions, write_predictions
from tests.factories import choice, prediction, story


def test_predictions_read_back_as_written_one_a_line(tmp_path: Path) -> None:
    rows = [prediction(1, True, output="two\nlines\u2028and an é"), choice(2, False)]
    file = tmp_path / "new" / "predictions.jsonl"
    write_predictions(rows, file)
    assert read_predictions(file, foreign=True) == rows
    assert file.read_bytes().count(b"\n") == 2


def test_subset_and_habit_are_written_only_where_a_row_has_them(tmp_path: Path) -> None:
    rows = [prediction(1, True), story(2, "conflict", "kitchen"), story(3, "gold", "garage", habit=[])]
    file = tmp_path / "predictions.jsonl"
    write_predictions(rows, file)
    assert read_predictions(file, foreign=True) == rows
    untagged, tagged, without_habit = file.read_text(encoding="utf-8").splitlines()
    assert list(json.loads(untagged))[-1] == "set_accuracy", "the line of a row without a tag is as it always was"
    assert json.loads(tagged)["habit"] == ["kitchen"]
    assert "habit" not in json.loads(without_habit)


@pytest.mark.parametrize("damage", ['{"id": "s2", "data', "[1]", '{"id": "s2"}', "\udcff"])
def test_a_damaged_line_is_named(tmp_path: Path, damage: str) -> None:
    file = tmp_path / "predictions.jsonl"
    good = prediction(1, True).model_dump_json()
    file.write_text(f"{good}\n{damage}\n", encoding="utf-8", errors="surrogateescape")
    with pytest.raises(UserError, match=r"predictions\.jsonl, line 2"):
        read_predictions(file, foreign=True)


def test_a_missing_or_empty_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        read_predictions(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(UserError, match="no prediction"):
        read_predictions(tmp_path / "empty.jsonl", foreign=True)


def test_an_answer_is_right_by_exact_match_and_for_mcq_by_its_set() -> None:
    assert prediction(1, True).right
    assert not prediction(1, False, f1=0.9).right
    reordered = choice(1, True, format="mcq", exact_match=0.0, f1=1.0, set_accuracy=1.0)
    assert reordered.right
    assert reordered.mean == 0.5
