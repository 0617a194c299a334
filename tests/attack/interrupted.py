"""The training that attacks interrupt, and the comparison with an uninterrupted one."""

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file

from tests.attack.frame import Attempt
from tests.command import finish, start, train
from tests.factories import make_world, write_recipe

REQUEUE = 75


def prepare_training(folder: Path) -> Path:
    """Make a model with dropout, 11 samples, a recipe of 12 steps with 6 checkpoints, and its run (`whole`)."""
    make_world(folder, train=11, bench=0, kinds={"model": "gpt2-dropout"})
    saved = ("train.save_steps=2", "train.save_total_limit=2")
    write_recipe(folder, folder / "recipe", "train.num_train_epochs=4", "train.max_steps=-1", *saved)
    ended = train(folder, training_arguments(folder, folder / "whole"))
    assert ended.status == 0, ended.printed
    return folder


def training_arguments(world: Path, run: Path, *more: str) -> list[str | Path]:
    return [world / "recipe.yaml", f"train.output_dir={run}", *more]


def same_weights(run: Path, whole: Path) -> None:
    ours, theirs = load_file(run / "model.safetensors"), load_file(whole / "model.safetensors")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs), "other weights"


def until_done(
    given: Attempt,
    arguments: Sequence[str | Path],
    number: int,
    verb: str,
    most: float,
    meanwhile: Callable[[], None] = lambda: None,
    environment: dict[str, str] | None = None,
) -> int:
    """Start a command, signal it at a random moment, and start it again until it finishes; return the number of
    signals.

    `most` is the latest time of the signal in seconds, a third more each time. `meanwhile` asserts what must hold
    after each signal.
    """
    for sent in range(40):
        # Loading takes time, so the command would never finish if the signal always came early.
        wait = given.random.uniform(0, most * 1.3**sent)
        process, output = start(given.folder, arguments, None, environment, verb)
        deadline = time.monotonic() + wait
        while process.is_alive() and time.monotonic() < deadline:
            time.sleep(0.002)
        if process.is_alive():
            os.kill(process.pid, number)
        ended = finish((process, output))
        if ended.status == 0:
            return sent
        expected = (-signal.SIGKILL,) if number == signal.SIGKILL else (REQUEUE, -signal.SIGTERM)
        assert ended.status in expected, f"status {ended.status}\n{ended.printed[-3000:]}"
        meanwhile()
    raise AssertionError("never came to its end")
