"""Files whose clock lies: contents that change while size and times stay, and times long ago or in the future."""

import os
import shutil
from pathlib import Path

import pytest

from d2e_sft.data.sample import write_samples
from tests.attack.frame import Attempt, attack
from tests.attack.test_disk import files_of
from tests.command import d2e, refusal_of
from tests.factories import bench_rows, make_world

QUICK = ("--max-new-tokens", "3", "--batch-size", "6")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and rows, with their predictions in a run and answers in a file."""
    folder = make_world(tmp_path_factory.mktemp("world") / "world", train=4, bench=0)
    write_samples(bench_rows(6), folder / "rows.jsonl")
    assert d2e(*_evaluation(folder)) == 0
    assert d2e(*_prediction(folder)) == 0
    return folder


def _evaluation(world: Path) -> list[str | Path]:
    return ["eval", world / "model", "--bench", world / "rows.jsonl", "--out", world / "run", *QUICK]


def _prediction(world: Path) -> list[str | Path]:
    return ["predict", world / "model", world / "rows.jsonl", "--out", world / "answers.jsonl", *QUICK]


@attack(
    "change a byte of a model or of its rows; size and times stay",
    "times",
    "earlier answers are not taken for those of the changed files",
    tries=20,
)
def test_changed(given: Attempt) -> None:
    copy = given.folder / "world"
    shutil.copytree(given.world, copy)
    for command in (_evaluation(copy), _prediction(copy)):
        shutil.rmtree(copy)
        shutil.copytree(given.world, copy)
        file = given.random.choice([copy / "model" / "model.safetensors", copy / "rows.jsonl"])
        content, times = bytearray(file.read_bytes()), file.stat()
        if file.suffix == ".jsonl":
            place = content.index(b"It rained") + given.random.randrange(2)
            content[place] ^= 0x20
        else:
            content[-1 - given.random.randrange(len(content) // 2)] ^= 1
        file.write_bytes(content)
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
        assert "was decoded by another model or with other options" in " ".join(refusal_of(*command).split())
    given.things = 2


@attack(
    "times of all files in 1970, before it or in the future",
    "times",
    "finished work is found, and no result changes",
    tries=6,
)
def test_clocks(given: Attempt) -> None:
    copy = given.folder / "world"
    shutil.copytree(given.world, copy)
    for file in copy.rglob("*"):
        seconds = given.random.choice([0, -(10**9), 4 * 10**9, given.random.randrange(2 * 10**9)])
        os.utime(file, (seconds, seconds))
    before = {name: content for name, content in files_of(copy).items() if "scores.json" not in name}
    assert d2e(*_evaluation(copy)) == 0
    assert d2e(*_prediction(copy)) == 0
    assert {name: content for name, content in files_of(copy).items() if "scores.json" not in name} == before
    given.things = 2
