"""Sample files and build folders that are named on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from d2e_sft.data.sample import write_samples
from tests.command import refusal_of
from tests.tiny import make_sample


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing.parquet", "missing.parquet: no such file"),
        ("broken.parquet", "broken.parquet: not a readable Parquet file"),
        ("empty.jsonl", "empty.jsonl: no usable row"),
        ("folder", "folder: a folder without train.parquet"),
    ],
)
@pytest.mark.parametrize("verb", ["stats", "check"])
def test_a_set_that_cannot_be_read_is_one_message(tmp_path: Path, verb: str, name: str, message: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "broken.parquet").write_text("no")
    (tmp_path / "empty.jsonl").touch()
    write_samples([make_sample()], tmp_path / "good.jsonl")
    against = ["--against", tmp_path / "good.jsonl"] if verb == "check" else []
    assert message in refusal_of("data", verb, tmp_path / name, *against)
