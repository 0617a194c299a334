"""Rows that were edited after their build are used with a warning, in training and in evaluation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from d2e_sft.data.built import warn_if_changed
from d2e_sft.data.sample import write_samples
from d2e_sft.util.files import sha256_of
from data_builders.dataset.manifest import describe_outputs
from tests.command import d2e
from tests.factories import bench_rows, evaluate, save_bench, train_rows, write_recipe
from tests.tiny import save_tiny_model


@pytest.fixture
def build(tmp_path: Path) -> Path:
    """A build whose files are as its manifest says."""
    build = save_bench(tmp_path / "bench", bench_rows(4), train_rows(4))
    outputs = describe_outputs([build / "train.parquet", build / "test.parquet"])
    (build / "manifest.json").write_text(json.dumps({"project": "d2e-sft", "outputs": outputs}))
    return build


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


def test_a_file_that_no_manifest_lists_is_not_judged(build: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, manifest = build / "test.parquet", build / "manifest.json"
    content = json.loads(manifest.read_text())
    warn_if_changed(file, sha256_of(file))
    for other in ({**content, "project": "x"}, {**content, "outputs": {}}, [], {"outputs": 3}, None):
        manifest.write_text("{" if other is None else json.dumps(other))
        warn_if_changed(file, "0" * 64)
    assert not capsys.readouterr().err
