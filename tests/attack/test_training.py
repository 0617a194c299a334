"""Kills and repetitions of a training: the weights are those of the uninterrupted run, bit for bit."""

import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.attack.frame import Attempt, attack
from tests.attack.interrupted import prepare_training, same_weights, training_arguments, until_done
from tests.command import finish, start, train

SAME = "resumes to the weights of an uninterrupted run, bit for bit"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_training(tmp_path_factory.mktemp("world"))


@attack("SIGKILL at random moments of a training", "training", SAME, tries=12)
def test_killed(given: Attempt) -> None:
    arguments = training_arguments(given.world, given.folder / "run", "--auto-resume")
    kills = until_done(given, arguments, signal.SIGKILL, "train", 2.0)
    same_weights(given.folder / "run", given.world / "whole")
    given.things = kills


@attack("SIGTERM at random moments of a training", "training", SAME, tries=6, quick=0)
def test_terminated(given: Attempt) -> None:
    arguments = training_arguments(given.world, given.folder / "run", "--auto-resume")
    terminations = until_done(given, arguments, signal.SIGTERM, "train", 2.0)
    same_weights(given.folder / "run", given.world / "whole")
    given.things = terminations


@attack("a second training in the folder", "training", "rejected; a kill leaves no lock", tries=5)
def test_second_training(given: Attempt) -> None:
    arguments = training_arguments(given.world, given.folder / "run", "train.num_train_epochs=400")
    first = start(given.folder, arguments, None)
    try:
        _wait_for(given.folder / "run" / "data.json", first[0])
        time.sleep(given.random.uniform(0, 1))
        ended = train(given.folder, [*arguments, "--overwrite"])
        assert ended.status == 1, ended.printed
        assert "another training is at work there" in " ".join(ended.printed.split())
        assert first[0].is_alive()
    finally:
        first[0].kill()
        finish(first)
    ended = train(given.folder, training_arguments(given.world, given.folder / "run", "--overwrite"))
    assert ended.status == 0, f"a lock was left behind\n{ended.printed}"
    same_weights(given.folder / "run", given.world / "whole")


@attack("the launcher's parent killed", "training", "its workers end within a second", tries=5, quick=0)
def test_orphaned(given: Attempt) -> None:
    arguments = training_arguments(given.world, given.folder / "run", "train.num_train_epochs=4000")
    first = start(given.folder, [*arguments, "--launch", "ddp", "--processes", "2"], None)
    try:
        _wait_for(given.folder / "run" / "data.json", first[0])
        time.sleep(given.random.uniform(0, 2))
        family = psutil.Process(first[0].pid).children(recursive=True)
        assert len(family) >= 3, "a launcher and two workers"
    finally:
        first[0].kill()
        finish(first)
    _, left = psutil.wait_procs(family, timeout=1)
    left = [process for process in left if _runs(process)]
    for process in left:
        process.kill()
    assert not left, f"{len(left)} processes ran on"


def _runs(process: psutil.Process) -> bool:
    """Whether it is at work: one that has ended may be listed until its new parent has heard of it."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _wait_for(path: Path, process: Any) -> None:
    deadline = time.monotonic() + 120
    while not path.exists():
        assert process.is_alive(), "it ended by itself"
        assert time.monotonic() < deadline
        time.sleep(0.02)
