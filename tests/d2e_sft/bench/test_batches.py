"""`d2e bench batches`: what it counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from d2e_sft.bench.batches import VOCABULARY, as_table, bench_batches
from d2e_sft.bench.engines import synthetic_rows
from d2e_sft.config.recipe import D2ESection
from d2e_sft.model.collation import PackedCollator
from tests.command import d2e


def test_every_setting_is_measured_and_tokens_are_those_of_the_packed_rows() -> None:
    rows = bench_batches([60], samples=2, workers=(0, 1), count=40, repeats=3)
    assert [(row.context, row.workers) for row in rows] == [(60, 0), (60, 1)]
    packed = PackedCollator(D2ESection().step_views)(synthetic_rows(2, 60, VOCABULARY))["input_ids"].numel()
    for row in rows:
        assert row.lowest_samples_a_second <= row.samples_a_second <= row.highest_samples_a_second
        # A random context may begin with the question's first tokens, which are then shared: very seldom.
        assert row.tokens_a_second / row.samples_a_second == pytest.approx(packed / 2, rel=0.01)
    assert len(as_table(rows).frame) == 2


def test_the_command_writes_what_it_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rows.json"
    options = ["--contexts", "60", "--samples", "2", "--workers", "0", "--count", "40", "--repeats", "1"]
    assert d2e("bench", "batches", *options, "--json", file) == 0
    (row,) = json.loads(file.read_text())["rows"]
    assert f"{row['samples_a_second']:,}" in capsys.readouterr().out
