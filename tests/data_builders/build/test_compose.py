"""Which of the samples that were read become rows."""

from __future__ import annotations

from pathlib import Path

from d2e_sft.data.built import read_manifest
from d2e_sft.data.sample import read_samples
from tests.command import output_of


def test_context_bounds_leave_out_and_count(raw: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    output_of("data", "build", "--datasets", "ecare", "--raw", raw, "--out", out, "--min-context-words", 4)
    assert all(len(sample.context.split()) >= 4 for sample in read_samples(out / "train.parquet"))
    filters = read_manifest(out)["datasets"]["ecare"]["splits"]["train"]["filters"]
    assert filters[-1]["name"] == "context of 4 to any number of words"
