"""A recipe of a tiny model on 18 samples."""

from __future__ import annotations

from pathlib import Path

import pytest

from d2e_sft.data.sample import write_samples
from tests.tiny import make_samples, save_tiny_model

RECIPE = """
model: {{name: {folder}/model}}
data: {{train: {folder}/train.parquet, max_length: 1000}}
train: {{output_dir: {folder}/run, num_train_epochs: 3, batch_size: 8, per_device_train_batch_size: 4, bf16: false,
         warmup_steps: 0.25}}
"""


@pytest.fixture(scope="module")
def recipe_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dryrun")
    save_tiny_model(folder / "model")
    write_samples(make_samples(18), folder / "train.parquet")
    (folder / "recipe.yaml").write_text(RECIPE.format(folder=folder), encoding="utf-8")
    return folder / "recipe.yaml"
