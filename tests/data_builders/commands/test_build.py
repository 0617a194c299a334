"""`d2e data`: what the user types and sees."""

from __future__ import annotations

from pathlib import Path

from tests.command import call


def test_build_prints_counts_and_filters(raw: Path, tmp_path: Path) -> None:
    result = call("data", "build", "--datasets", "ecare, mctaco", "--raw", raw, "--out", tmp_path / "out")
    assert result.status == 0, result.out
    lines = [line.split() for line in result.out.splitlines()]
    assert ["dataset", "split", "relation", "format", "rows"] in lines
    assert ["ecare", "test", "causal", "scq", "2"] in lines
    assert ["ecare", "train", "repeated", "rows", "3", "→", "2", "rows"] in lines
    assert "warning: ecare/train.jsonl: differs from the published file" in result.err


def test_build_prints_how_many_rows_of_each_subset_there_are(tmp_path: Path) -> None:
    settings = ["habit.strength=0.95", "habit.train_samples=40", "habit.test_samples=6"]
    result = call("data", "build", "--datasets", "habit", "--out", tmp_path, *settings)
    assert "subsets of habit train: 38 aligned, 2 conflict\n" in result.out
    assert "subsets of habit test: 6 aligned, 6 conflict\n" in result.out
