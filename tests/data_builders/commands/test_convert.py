"""`d2e data convert`: own rows to the other format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from d2e_sft.data.sample import read_samples, write_samples
from tests.command import call, refusal_of
from tests.tiny import make_sample

GOOD = make_sample(format="nli", answers=["positive"], meta={"note": "é"})


def _rows(path: Path, *changes: dict[str, object]) -> Path:
    path.write_text("".join(json.dumps(GOOD.model_dump() | change) + "\n" for change in changes), encoding="utf-8")
    return path


def test_convert_goes_to_parquet_and_back_without_loss(tmp_path: Path) -> None:
    source = _rows(tmp_path / "a.jsonl", {}, {"id": "2", "answers": ["negative"]})
    assert call("data", "convert", source, tmp_path / "b.parquet").status == 0
    result = call("data", "convert", tmp_path / "b.parquet", tmp_path / "c.jsonl")
    assert "c.jsonl: 2 rows" in result.out
    assert read_samples(tmp_path / "c.jsonl") == read_samples(source)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answers": [""]}, "answers.0: got ''; expected text that is not empty"),
        ({"answers": []}, "answers: got []"),
        ({"answers": ["maybe"]}, "answers: ['maybe'] for an nli sample; expected one of ['positive', 'negative']"),
    ],
)
def test_convert_names_line_field_and_value_of_a_bad_row(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    source = _rows(tmp_path / "a.jsonl", {}, change)
    printed = refusal_of("data", "convert", source, tmp_path / "b.parquet")
    assert f"a.jsonl, line 2: {message}" in printed
    assert not (tmp_path / "b.parquet").exists()


def test_convert_puts_bad_rows_aside_and_counts_them(tmp_path: Path) -> None:
    source = _rows(tmp_path / "a.jsonl", {}, {"answers": ["maybe"]}, {"split": "exam"})
    result = call("data", "convert", source, tmp_path / "b.parquet", "--skip-bad")
    assert "b.parquet: 1 rows" in result.out
    assert "2 bad rows put aside" in result.out
    aside = [json.loads(line) for line in (tmp_path / "b.parquet.bad.jsonl").read_text("utf-8").splitlines()]
    assert [entry["line"] for entry in aside] == [2, 3]
    assert call("data", "convert", str(_rows(source, {})), str(tmp_path / "b.parquet"), "--skip-bad").status == 0
    assert not (tmp_path / "b.parquet.bad.jsonl").exists()


def test_convert_refuses_a_truncated_file_and_an_unknown_ending(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write_samples([GOOD], path)
    path.write_bytes(path.read_bytes()[:-30])
    assert "a.parquet: not a readable Parquet file" in refusal_of("data", "convert", path, tmp_path / "b.jsonl")
    message = refusal_of("data", "convert", tmp_path / "missing.jsonl", tmp_path / "b.csv")
    assert "b.csv: cannot write .csv; expected .parquet or .jsonl" in message
