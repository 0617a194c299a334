"""`d2e data`: what the user types and sees."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.command import call, refusal_of


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


def test_build_counts_skipped_rows(raw: Path, tmp_path: Path) -> None:
    with (raw / "tracie/iid/tracie_train.txt").open("a") as file:
        file.write("bad\n")
    result = call("data", "build", "--datasets", "tracie", "--raw", raw, "--out", tmp_path / "out", "--skip-bad")
    assert "bad rows put aside: 1" in result.out
    assert "bad_rows.jsonl" in result.out


def test_a_users_error_is_one_message_without_traceback(raw: Path, tmp_path: Path) -> None:
    message = refusal_of("data", "build", "--datasets", "tracie", "--raw", tmp_path / "no", "--out", tmp_path)
    assert message.startswith("d2e: error: ")
    assert "no: no such folder; expected a folder with raw files as DATASET/FILE" in message
    assert "Traceback" not in message


@pytest.mark.parametrize("arguments", [[], ["build"], ["check"], ["convert"], ["push"], ["stats"]])
def test_help_ends_with_the_options_and_shows_an_example(arguments: list[str]) -> None:
    result = call("data", *arguments, "--help")
    assert result.status == 0
    assert re.search(r"Examples?:\s+d2e data", result.out)
