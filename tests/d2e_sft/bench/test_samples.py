"""`d2e bench samples` on a tiny model: every way gives the same answers, and the figures follow from each other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from d2e_sft.bench.samples import WAYS
from tests.command import output_of
from tests.factories import bench_rows, save_bench
from tests.tiny import save_tiny_model


def test_every_way_is_a_row_with_the_same_answers(tmp_path: Path) -> None:
    model, target = save_tiny_model(tmp_path / "model", seed=1), tmp_path / "bench.json"
    file = save_bench(tmp_path / "bench", bench_rows(24)) / "test.parquet"
    options = ["--samples", "20", "--new-tokens", "4", "--repeats", "2", "--json", target]
    printed = output_of("bench", "samples", file, "--model", model, *options)
    rows = json.loads(target.read_text("utf-8"))["rows"]
    assert [row["way"] for row in rows] == list(WAYS)
    assert [row["samples"] for row in rows] == [20] * 3
    assert [row["same"] for row in rows] == [1] * 3
    assert rows[0]["to_first"] == 1
    for row in rows:
        assert row["samples_per_s"] == pytest.approx(20 / row["cpu_s"], rel=0.2)
    assert printed.count("100.0%") == 3
