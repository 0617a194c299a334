"""Two sweeps that write their results to one file."""

import json
import time
from pathlib import Path

import pytest

from tests.attack.frame import Attempt, attack
from tests.command import finish, start
from tests.factories import make_world, write_recipe

_SWEEPS = {"seeds": "train.seed=0,1", "ratios": "d2e.alpha=0.1,0.2"}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished sweeps, of two points each."""
    folder = make_world(tmp_path_factory.mktemp("world"), train=4, bench=4)
    write_recipe(folder, folder / "recipe", "train.max_steps=1")
    for name in _SWEEPS:
        ended = finish(start(folder, _arguments(folder, name, folder / f"{name}.json"), None, verb="sweep"), 300)
        assert ended.status == 0, ended.printed
    return folder


def _arguments(world: Path, name: str, results: Path) -> list[str | Path]:
    where = ["--bench", world / "bench", "--out", world / name, "--results", results]
    return [world / "recipe.yaml", _SWEEPS[name], *where, "--eval-args", "--max-new-tokens 2"]


@attack("two sweeps with one results file", "sweep", "the file has the points of both", tries=10, quick=0)
def test_one_file(given: Attempt) -> None:
    results, started = given.folder / "results.json", []
    for name in _SWEEPS:
        started.append(start(given.folder, _arguments(given.world, name, results), None, verb="sweep"))
        time.sleep(given.random.uniform(0, 0.2))
    ended = [finish(one) for one in started]
    assert [one.status for one in ended] == [0, 0], [one.printed for one in ended]
    rows = [json.loads((given.world / f"{name}.json").read_text())["rows"] for name in _SWEEPS]
    found = json.loads(results.read_text())["rows"]
    assert sorted(found, key=str) == sorted(rows[0] + rows[1], key=str)
