"""Rows that were edited after their build are used with a warning, in training and in evaluation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from d2e_sft.data.sample import write_samples
from tests.command import d2e, refusal_of
from tests.d2e_sft.hub.runs import make_run
from tests.factories import (
    bench_rows,
    evaluate,
    evaluation,
    save_bench,
    train_rows,
    write_recipe,
)
from tests.tiny import save_tiny_model


@pytest.fixture
def build(tmp_path: Path) -> Path:
    """A build whose files are as its manifest says."""
    return save_bench(tmp_path / "bench", bench_rows(4), train_rows(4), manifest={})


def test_training_and_evaluation_warn_of_an_edited_file(
    tmp_path: Path, build: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_tiny_model(tmp_path / "model", seed=3)
    recipe = write_recipe(tmp_path, tmp_path / "run", f"data.train={build / 'train.parquet'}", "train.max_steps=1")
    write_samples(train_rows(3), build / "train.parquet")
    assert (d2e("train", recipe), evaluate(tmp_path, tmp_path / "scores")) == (0, 0)
    warnings = capsys.readouterr().err
    assert f"warning: {build / 'train.parquet'}: changed after it was built" in warnings
    assert "test.parquet: changed after it was built" not in warnings
    write_samples(bench_rows(3), build / "test.parquet")
    assert evaluate(tmp_path, tmp_path / "others") == 0
    assert f"warning: {build / 'test.parquet'}: changed after it was built" in capsys.readouterr().err


DAMAGED = {
    "empty": "",
    "cut": '{"project": "d2e-sft", "version": "0.1.0", "outputs": {"test.parq',
    "a list": "[]",
    "without outputs": '{"files": null}',
    "no checksum": json.dumps({"project": "d2e-sft", "version": "1", "outputs": {"test.parquet": {}}, "datasets": {}}),
    "other project": json.dumps({"project": "x", "version": "1", "outputs": {}, "datasets": {}}),
}


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED)
def test_rows_next_to_a_damaged_manifest_are_neither_trained_on_nor_evaluated_nor_described(
    tmp_path: Path, build: Path, text: str
) -> None:
    save_tiny_model(tmp_path / "model", seed=3)
    recipe = write_recipe(tmp_path, tmp_path / "run", f"data.train={build / 'train.parquet'}")
    (build / "manifest.json").write_text(text)
    run = make_run(tmp_path / "trained", "llama", f"data.train={build / 'train.parquet'}")
    said = f"{build / 'manifest.json'}: not the manifest of a build"
    for call in (
        ("train", recipe),
        ("train", recipe, "--dry-run"),
        evaluation(tmp_path, tmp_path / "scores"),
        ("eval", tmp_path / "model", "--suite", "piper", "--data", build),
        ("data", "push", "a/b", "--data", build),
        ("export", run, tmp_path / "out"),
    ):
        assert said in refusal_of(*call)
