"""`d2e score`: where the scores go, and files that are not there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command import d2e
from tests.eval.systems.boxes.rows import ROWS, save

TEXTS = ["the cup", "the hat and the pen", "nothing", "nothing", "the pen", "nothing"]  # the last one is wrong


def test_scores_are_printed_as_tables_or_json_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gold = save(tmp_path / "test.jsonl", ROWS)
    answers = save(tmp_path / "p.jsonl", [{"prediction": text} for text in TEXTS])
    call = ("score", "boxes", "--predictions", answers, "--gold", gold)
    assert d2e(*call, "--json", tmp_path / "scores.json") == 0
    printed = capsys.readouterr().out
    assert "| whole states" in printed
    assert f"scores: {tmp_path / 'scores.json'}" in printed
    assert d2e(*call, "--json", "-") == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores == json.loads((tmp_path / "scores.json").read_text())
    assert scores["questions"] == 6
    assert scores["accuracy"]["mean"] == pytest.approx(5 / 6)


@pytest.mark.parametrize("option", ["--predictions", "--gold"])
def test_a_file_that_is_not_there_is_named_by_its_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    files = {"--predictions": save(tmp_path / "p.jsonl", []), "--gold": save(tmp_path / "test.jsonl", ROWS)}
    files[option] = tmp_path / "none.jsonl"
    assert d2e("score", "boxes", *(part for pair in files.items() for part in pair)) == 1
    assert f"{option} {tmp_path / 'none.jsonl'}: no such file" in capsys.readouterr().err
