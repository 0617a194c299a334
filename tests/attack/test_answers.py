"""Damage to the answers of a killed evaluation, and kills of a running one."""

import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from tests.attack.frame import Attempt, attack
from tests.attack.interrupted import until_done
from tests.command import Kill, d2e, evaluate, finish, start
from tests.factories import bench_rows, save_bench
from tests.tiny import save_tiny_model

RIGHT = "correct predictions, or an error with file and line"

PARTIAL = "predictions.partial.jsonl"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished evaluation of a tiny model (`whole`), and one that was killed twice (`killed`)."""
    folder = tmp_path_factory.mktemp("world")
    save_tiny_model(folder / "model", seed=3)
    save_bench(folder / "bench", bench_rows(14))
    assert _evaluate(folder, folder / "whole") == 0
    for call in (5, 8):  # appends: the session's line, then answers
        kill = Kill("eval.run.journal:Journal._append", call, after=True)
        ended = evaluate(folder, _arguments(folder, folder / "killed"), kill)
        assert ended.status == -9, ended.printed
    return folder


def _arguments(world: Path, run: Path, *more: str) -> list[str | Path]:
    given = ("--max-new-tokens", "6", "--batch-size", "3", "--alpha", "0.5", *more)
    return [world / "model", "--bench", world / "bench", "--out", run, *given]


def _evaluate(world: Path, run: Path, *more: str) -> int:
    return d2e("eval", *_arguments(world, run, *more))


def _outputs(run: Path) -> list[str]:
    lines = (run / "eval" / "bench" / "predictions.jsonl").read_bytes().splitlines()
    return [json.loads(line)["output"] for line in lines]


def _resume_after(given: Attempt, change: bytes, *, must_refuse: bool = False) -> None:
    """Resume the killed evaluation with these answers: it ends with correct predictions, or is rejected."""
    shutil.copytree(given.world / "killed", given.folder / "run")
    (given.folder / "run" / "eval" / "bench" / PARTIAL).write_bytes(change)
    status = _evaluate(given.world, given.folder / "run")
    if status == 0:
        assert not must_refuse, "the damage was not noticed"
        assert _outputs(given.folder / "run") == _outputs(given.world / "whole"), "wrong predictions, exit 0"
    else:
        assert status == 1


@attack("lose a line of the answers so far", "evaluation", RIGHT)
def test_lose_a_line(given: Attempt) -> None:
    lines = (given.world / "killed" / "eval" / "bench" / PARTIAL).read_bytes().splitlines(keepends=True)
    gone = given.random.choice([0, given.random.randrange(len(lines))])
    _resume_after(given, b"".join(lines[:gone] + lines[gone + 1 :]), must_refuse=gone == 0)


@attack("cut off the answers so far", "evaluation", RIGHT)
def test_cut_off(given: Attempt) -> None:
    content = (given.world / "killed" / "eval" / "bench" / PARTIAL).read_bytes()
    _resume_after(given, content[: given.random.randrange(len(content))])


@attack("put a line into the answers so far", "evaluation", RIGHT, tries=50)
def test_put_in_a_line(given: Attempt) -> None:
    lines = (given.world / "killed" / "eval" / "bench" / PARTIAL).read_bytes().splitlines(keepends=True)
    odd = ["null", '"fingerprint"', "[]", "7", "{}", '{"index": 99, "output": "of no prompt"}', "NaN", "[" * 5000]
    odd += [lines[given.random.randrange(len(lines))].decode().rstrip("\n")]
    place = given.random.randrange(len(lines) + 1)
    lines.insert(place, given.random.choice(odd).encode() + b"\n")
    _resume_after(given, b"".join(lines))


@attack(
    "SIGKILL at random moments of an evaluation",
    "evaluation",
    "the predictions of an uninterrupted evaluation",
    tries=12,
)
def test_kill_at_random_moments(given: Attempt) -> None:
    arguments = _arguments(given.world, given.folder / "run")
    kills = until_done(given, arguments, signal.SIGKILL, "eval", 1.5)
    predictions = [
        run / "eval" / "bench" / "predictions.jsonl" for run in (given.folder / "run", given.world / "whole")
    ]
    assert predictions[0].read_bytes() == predictions[1].read_bytes()
    assert not list((given.folder / "run" / "eval" / "bench").glob("*partial*"))
    given.things = kills


@attack("a second evaluation in the folder", "evaluation", "rejected; a kill leaves no lock", tries=5)
def test_second_evaluation(given: Attempt) -> None:
    arguments = _arguments(given.world, given.folder / "run", "--overwrite")
    first = start(given.folder, arguments, Kill("eval.run.journal:Journal._append", 6), verb="eval")
    lock = given.folder / "run" / "eval" / "bench" / ".lock"
    while not (lock.exists() and lock.stat().st_size):  # it names its process once it is locked
        assert first[0].is_alive()
        time.sleep(0.001)
    os.kill(first[0].pid, signal.SIGSTOP)
    try:
        assert _evaluate(given.world, given.folder / "run", "--overwrite") == 1, "two at once"
    finally:
        os.kill(first[0].pid, signal.SIGCONT)
    assert finish(first).status == -signal.SIGKILL
    assert _evaluate(given.world, given.folder / "run") == 0, "a lock was left behind"
    assert _outputs(given.folder / "run") == _outputs(given.world / "whole")
