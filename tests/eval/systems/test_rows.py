"""Anybody's outputs on a benchmark's rows: scored as `d2e eval` scores its own, tags and all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eval.systems.rows import ROWS_BENCHMARK, RowsOptions
from tests.command import output_of
from tests.eval.systems.files import save
from tests.factories import predictions, save_bench, scores_of
from tests.tiny import make_sample

SAID = ["The answer is: the garage", "the kitchen", "The answer is: the attic", ""]


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    """An aligned row, two conflict rows and one without a tag."""
    tags: list[dict[str, Any]] = [
        {"subset": "aligned", "habit": ["garage"]},
        {"subset": "conflict", "habit": ["kitchen"]},
        {"subset": "conflict", "habit": ["kitchen"]},
        {},
    ]
    rows = [make_sample(n, dataset="keys", split="test", answers=["garage"], **tag) for n, tag in enumerate(tags)]
    return save_bench(tmp_path / "bench", rows)


def save_outputs(path: Path, texts: list[str], **fields: Any) -> Path:
    return save(path, [{"id": f"s{n}", "output": text, **fields} for n, text in enumerate(texts)])


def test_outputs_are_extracted_and_scored_by_subset(bench: Path, tmp_path: Path) -> None:
    scored = ROWS_BENCHMARK.score(save_outputs(tmp_path / "theirs.jsonl", SAID, model="theirs"), bench, RowsOptions())
    assert [p.answer for p in scored.predictions] == [["the garage"], ["the kitchen"], ["the attic"], []]
    (own,) = scored.run.subsets
    assert {name: one.accuracy.mean for name, one in own.subsets.items()} == {"aligned": 1.0, "conflict": 0.0}
    assert own.subsets["conflict"].habit_rate.mean == 0.5


def test_the_results_are_a_run_that_can_be_compared(bench: Path, tmp_path: Path) -> None:
    def score(outputs: Path, *more: str | Path) -> str:
        return output_of("score", "rows", "--predictions", outputs, "--gold", bench, *more)

    for name, texts in (("theirs", SAID), ("perfect", ["garage"] * 4)):
        printed = score(save_outputs(tmp_path / f"{name}.jsonl", texts), "--out", tmp_path / name)
        assert "By subset" in printed
        assert f"scores and predictions: {tmp_path / name / 'eval' / 'bench'}" in printed
    compared = output_of("compare", tmp_path / "theirs", tmp_path / "perfect")
    assert "keys, conflict, 2 rows, right: theirs 0, perfect 2" in compared
    found = json.loads(score(tmp_path / "perfect", "--json", "-"))  # a run's folder will do
    assert found["overall"]["exact_match"]["mean"] == 1
    score(tmp_path / "theirs" / "eval" / "bench" / "predictions.jsonl", "--out", tmp_path / "again")
    assert predictions(tmp_path / "again") == predictions(tmp_path / "theirs")
    assert scores_of(tmp_path / "again")["subsets"] == scores_of(tmp_path / "theirs")["subsets"]


def test_rows_without_an_output_are_refused_or_left_out_and_counted(bench: Path, tmp_path: Path) -> None:
    outputs = save_outputs(tmp_path / "theirs.jsonl", SAID[:3])
    arguments = ("--predictions", outputs, "--gold", bench, "--set", "missing=leave_out")
    assert "rows without an output, left out: 1" in output_of("score", "rows", *arguments)


def test_an_id_of_two_datasets_needs_the_dataset(tmp_path: Path) -> None:
    rows = [make_sample(0, dataset=name, split="test", answers=["garage"]) for name in ("keys", "locks")]
    bench = save_bench(tmp_path / "bench", rows)
    named = save(tmp_path / "named.jsonl", [{"id": "s0", "dataset": d, "output": d} for d in ("locks", "keys")])
    assert [p.output for p in ROWS_BENCHMARK.score(named, bench, RowsOptions()).predictions] == ["keys", "locks"]
