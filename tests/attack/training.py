"""Kills of a training, and its repetition: the weights are those of the run that was left alone, bit for bit."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import torch
import yaml
from safetensors.torch import load_file
from transformers import GPT2LMHeadModel

from d2e_sft.data.sample import write_samples
from tests.attack.frame import Attack, Attempt
from tests.command import finish, start, train
from tests.tiny import make_samples, tiny_model, tiny_tokenizer

REQUEUE = 75


def prepare(folder: Path) -> Path:
    """A model with dropout, 11 samples, a recipe of 12 steps with a checkpoint every second, and its run (`whole`)."""
    model: GPT2LMHeadModel = tiny_model("gpt2")
    model.config.resid_pdrop = model.config.embd_pdrop = model.config.attn_pdrop = 0.1
    model.save_pretrained(folder / "model")
    tiny_tokenizer().save_pretrained(folder / "model")
    write_samples(make_samples(11), folder / "train.jsonl")
    content: dict[str, Any] = {
        "model": {"name": str(folder / "model")},
        "data": {"train": str(folder / "train.jsonl"), "max_length": 1000},
        "train": {
            "num_train_epochs": 4, "batch_size": 4, "per_device_train_batch_size": 2, "learning_rate": 3e-3,
            "logging_steps": 1,
            "save_steps": 2, "save_total_limit": 2, "bf16": False,
        },
    }  # fmt: skip
    (folder / "recipe.yaml").write_text(yaml.safe_dump(content))
    ended = train(folder, _arguments(folder, folder / "whole"))
    assert ended.status == 0, ended.printed
    return folder


def _arguments(world: Path, run: Path, *more: str) -> list[str | Path]:
    return [world / "recipe.yaml", f"train.output_dir={run}", *more]


def same_weights(run: Path, whole: Path) -> None:
    """Assert that two runs ended in the same weights, bit for bit."""
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
    """Start a command, send it a signal at a random moment, start it again, until it comes to its end.

    Args:
        most: seconds after which the signal is sent at the latest, a third more each time.
        meanwhile: what has to hold after each signal.

    Returns:
        how many signals it got.
    """
    for sent in range(40):
        # What is there already takes long to load, so a signal that always comes early would never let it end.
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


def killed(given: Attempt) -> int:
    arguments = _arguments(given.world, given.folder / "run", "--auto-resume")
    kills = until_done(given, arguments, signal.SIGKILL, "train", 2.0)
    same_weights(given.folder / "run", given.world / "whole")
    return kills


def terminated(given: Attempt) -> int:
    arguments = _arguments(given.world, given.folder / "run", "--auto-resume")
    terminations = until_done(given, arguments, signal.SIGTERM, "train", 2.0)
    same_weights(given.folder / "run", given.world / "whole")
    return terminations


def again(given: Attempt) -> None:
    ended = train(given.folder, _arguments(given.world, given.folder / "run"))
    assert ended.status == 0, ended.printed
    same_weights(given.folder / "run", given.world / "whole")


def second_training(given: Attempt) -> None:
    arguments = _arguments(given.world, given.folder / "run", "train.num_train_epochs=400")
    first = start(given.folder, arguments, None)
    try:
        _wait_for(given.folder / "run" / "data.json", first[0])
        time.sleep(given.random.uniform(0, 1))
        ended = train(given.folder, [*arguments, "--overwrite"])
        assert ended.status == 1, ended.printed
        assert "another training is at work there" in ended.printed
        assert first[0].is_alive()
    finally:
        first[0].kill()
        finish(first)
    ended = train(given.folder, _arguments(given.world, given.folder / "run", "--overwrite"))
    assert ended.status == 0, f"a lock was left behind\n{ended.printed}"
    same_weights(given.folder / "run", given.world / "whole")


def orphaned(given: Attempt) -> None:
    """SIGKILL to `d2e train --launch`: nothing that it started is there a moment later."""
    arguments = _arguments(given.world, given.folder / "run", "train.num_train_epochs=4000")
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


SAME = "resumed to the weights of the run that was left alone, bit for bit"
ATTACKS = (
    Attack("SIGKILL at random moments of a training", "training", SAME, killed, prepare, tries=12, quick=1),
    Attack("SIGTERM at random moments of a training", "training", SAME, terminated, prepare, tries=6, quick=1),
    Attack("the same seed again", "training", "the same weights, bit for bit", again, prepare, tries=5, quick=1),
    Attack(
        "a second training in the folder", "training", "refused; no lock left by a kill", second_training, prepare,
        tries=5, quick=1,
    ),
    Attack(
        "the launcher's parent killed", "training", "its workers end within a second", orphaned, prepare,
        tries=5, quick=0,
    ),
)  # fmt: skip
