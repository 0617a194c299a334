"""Kills of a data build: the folder has all old files, or all new files with a correct manifest."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest

from d2e_sft.util.files import sha256_of
from tests.attack.frame import Attempt, attack
from tests.attack.interrupted import until_done
from tests.command import d2e

ROWS = ("train.parquet", "test.parquet")


def _arguments(out: Path, seed: int) -> list[str | Path]:
    return ["build", "--datasets", "habit", "--seed", str(seed), "--out", out, "--overwrite"]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Uninterrupted builds of two seeds."""
    folder = tmp_path_factory.mktemp("world")
    for seed in (0, 1):
        assert d2e("data", *_arguments(folder / f"seed-{seed}", seed)) == 0
    return folder


@attack(
    "SIGKILL at random moments of a data build",
    "data",
    "old or new files with a correct manifest; finally the new",
    tries=15,
)
def test_killed(given: Attempt) -> None:
    out = given.folder / "out"
    shutil.copytree(given.world / "seed-0", out)
    kills = until_done(given, _arguments(out, 1), signal.SIGKILL, "data", 0.6, meanwhile=lambda: _check_manifest(out))
    for name in ROWS:
        assert (out / name).read_bytes() == (given.world / "seed-1" / name).read_bytes()
    _check_manifest(out)
    assert not list(out.glob(".*")), "temporary folders of killed builds"
    given.things = kills


def _check_manifest(out: Path) -> None:
    """Assert that a manifest, if there is one, describes the files in its folder."""
    if (out / "manifest.json").is_file():
        for name, output in json.loads((out / "manifest.json").read_text())["outputs"].items():
            assert sha256_of(out / name) == output["sha256"], f"{name} is not what the manifest says"
