"""A recipe of a tiny model on 18 samples."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.factories import make_world, write_recipe

KEYS = ("max_steps=-1", "num_train_epochs=3", "batch_size=8", "per_device_train_batch_size=4", "warmup_steps=0.25")


@pytest.fixture(scope="module")
def recipe_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_world(tmp_path_factory.mktemp("dryrun"), train=18, bench=0)
    return write_recipe(folder, folder / "run", *(f"train.{key}" for key in KEYS))
