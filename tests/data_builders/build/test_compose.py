"""Which of the samples that were read become rows."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from d2e_sft.data.sample import EventSample, read_samples
from data_builders.dataset.manifest import read_manifest
from tests.command import call


def test_context_bounds_leave_out_and_count(raw: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert (
        call("data", "build", "--datasets", "ecare", "--raw", raw, "--out", out, "--min-context-words", 4).status == 0
    )
    samples: list[EventSample] = read_samples(out / "train.parquet")
    assert all(len(sample.context.split()) >= 4 for sample in samples)
    filters = read_manifest(out)["datasets"]["ecare"]["splits"]["train"]["filters"]
    assert filters[-1]["name"] == "context of 4 to any number of words"


def test_every_filter_begins_where_the_one_before_ended(raw: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    call("data", "build", "--suite", "piper-10k", "--allow-shortfall", "--size", 8, "--raw", raw, "--out", out)
    for dataset in read_manifest(out)["datasets"].values():
        split = dataset["splits"]["train"]
        steps = [step for step in split["filters"] if step["unit"] == "rows"]
        for earlier, later in pairwise(steps):
            assert later["rows_in"] == earlier["rows_out"], (earlier, later)
        assert steps[-1]["rows_out"] == split["rows_written"]
