"""Rows that were edited after their build are told, in training and in evaluation, and are used all the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from d2e_sft.data.built import changed_since_build
from d2e_sft.data.sample import write_samples
from d2e_sft.util.files import sha256_of
from data_builders.dataset.manifest import describe_outputs
from tests.command import d2e
from tests.factories import bench_rows, evaluate, save_bench, train_rows
from tests.tiny import save_tiny_model


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """A tiny model, and a build of which both files are as its manifest says."""
    save_tiny_model(tmp_path / "model", seed=3)
    bench = save_bench(tmp_path / "bench", bench_rows(4), train_rows(4))
    files = [bench / "train.parquet", bench / "test.parquet"]
    (bench / "manifest.json").write_text(json.dumps({"project": "d2e-sft", "outputs": describe_outputs(files)}))
    return tmp_path


def _train(world: Path, name: str) -> int:
    recipe = {
        "model": {"name": str(world / "model")},
        "data": {"train": str(world / "bench" / "train.parquet"), "max_length": 1000},
        "train": {"output_dir": str(world / name), "max_steps": 1, "batch_size": 2, "per_device_train_batch_size": 2},
    }
    (world / "recipe.yaml").write_text(json.dumps(recipe))
    return d2e("train", world / "recipe.yaml")


def test_an_edited_file_is_told_when_it_is_trained_on_and_evaluated(
    world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (_train(world, "before"), evaluate(world, world / "first")) == (0, 0)
    assert "changed after it was built" not in capsys.readouterr().err
    write_samples(train_rows(3), world / "bench" / "train.parquet")
    write_samples(bench_rows(3), world / "bench" / "test.parquet")
    runs = {"train.parquet": lambda: _train(world, "after"), "test.parquet": lambda: evaluate(world, world / "second")}
    for name, run in runs.items():
        assert run() == 0
        assert f"warning: {world / 'bench' / name}: changed after it was built" in capsys.readouterr().err


def test_without_a_manifest_of_a_build_that_lists_the_file_there_is_nothing_to_tell(world: Path) -> None:
    file, manifest = world / "bench" / "test.parquet", world / "bench" / "manifest.json"
    content = json.loads(manifest.read_text())
    assert changed_since_build(file, sha256_of(file)) is None
    assert changed_since_build(file, "0" * 64) is not None
    for other in ({**content, "project": "x"}, {**content, "outputs": {}}, [], {"outputs": 3}):
        manifest.write_text(json.dumps(other))
        assert changed_since_build(file, "0" * 64) is None
    manifest.write_text("{")
    assert changed_since_build(file, "0" * 64) is None
