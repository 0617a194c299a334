"""Kills of a data build: the folder has all old files, or all new files with a correct manifest."""

import json
import shutil
import signal
import time
from pathlib import Path

import pytest

from d2e_sft.util.files import sha256_of
from tests.attack.frame import Attempt, attack
from tests.attack.interrupted import until_done
from tests.command import d2e, finish, start

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


@attack(
    "three builds into one folder at once",
    "data",
    "the rows and the manifest of one of them; without --overwrite the others are rejected",
    tries=12,
)
def test_together(given: Attempt) -> None:
    out, seeds = given.folder / "out", (0, 1, 0)
    overwrite = given.number % 2
    started = []
    for seed in seeds:
        arguments = _arguments(out, seed) if overwrite else _arguments(out, seed)[:-1]
        started.append(start(given.folder, arguments, None, verb="data"))
        time.sleep(given.random.uniform(0, 0.3))
    ended = [finish(one) for one in started]
    assert sorted(one.status for one in ended) == ([0, 0, 0] if overwrite else [0, 1, 1]), [
        one.printed for one in ended
    ]
    assert all("already contains a build" in " ".join(one.printed.split()) for one in ended if one.status)
    _check_manifest(out)
    written = [[(folder / name).read_bytes() for name in ROWS] for folder in (out, *given.world.iterdir())]
    assert written[0] in written[1:]
    assert not list(out.glob(".*"))


def _check_manifest(out: Path) -> None:
    """Assert that a manifest, if there is one, describes the files in its folder."""
    if (out / "manifest.json").is_file():
        for name, output in json.loads((out / "manifest.json").read_text())["outputs"].items():
            assert sha256_of(out / name) == output["sha256"], f"{name} is not what the manifest says"
