"""Which of the samples that were read become rows."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

from click.testing import CliRunner, Result

from d2e_sft.data.sample import EventSample, read_samples
from data_builders.commands import data


def _run(*arguments: object) -> Result:
    return CliRunner().invoke(data, ["build", *map(str, arguments)])


def _manifest(out: Path) -> dict[str, object]:
    content: dict[str, object] = json.loads((out / "manifest.json").read_text(encoding="utf-8"))
    return content


def test_context_bounds_leave_out_and_count(raw: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert _run("--datasets", "ecare", "--raw", raw, "--out", out, "--min-context-words", 4).exit_code == 0
    samples: list[EventSample] = read_samples(out / "train.parquet")
    assert all(len(sample.context.split()) >= 4 for sample in samples)
    filters = _manifest(out)["datasets"]["ecare"]["splits"]["train"]["filters"]  # type: ignore[index]
    assert filters[-1]["name"] == "context of 4 to any number of words"


def test_every_filter_begins_where_the_one_before_ended(raw: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    _run("--suite", "piper-10k", "--allow-shortfall", "--size", 8, "--raw", raw, "--out", out)
    for dataset in _manifest(out)["datasets"].values():  # type: ignore[attr-defined]
        split = dataset["splits"]["train"]
        steps = [step for step in split["filters"] if step["unit"] == "rows"]
        for earlier, later in pairwise(steps):
            assert later["rows_in"] == earlier["rows_out"], (earlier, later)
        assert steps[-1]["rows_out"] == split["rows_written"]
