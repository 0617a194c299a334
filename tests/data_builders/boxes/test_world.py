"""A world that is too small."""

from __future__ import annotations

from pathlib import Path

import pytest

from d2e_sft.data.sample import EventSample, read_samples
from d2e_sft.util.errors import UserError
from data_builders.build.options import BuildOptions
from data_builders.build.run import build


def _boxes(out: Path, *settings: str, seed: int = 0) -> dict[str, list[EventSample]]:
    result = build(BuildOptions(["boxes"], out, seed=seed, settings=[f"boxes.{setting}" for setting in settings]))
    return {path.stem: read_samples(path) for path in result.files if path.suffix == ".parquet"}


def test_a_world_too_small_for_the_samples_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"found no further initial state .*train \d+ of 2,000"):
        _boxes(tmp_path, "boxes=1", "max_objects=1")
