"""A killed and resumed run: the same losses and the same weights, bit for bit, as the run that was left alone."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import GPT2LMHeadModel

from d2e_sft import cli
from d2e_sft.checkpoints import checkpoints_of
from d2e_sft.sample import write_samples
from tests.killed import Ended, Kill, after_step, finish, start, train
from tests.tiny import make_sample, make_samples, save_tiny_model, tiny_model, tiny_tokenizer

# 19 samples in batches of 2 × 2: five steps an epoch, the last of them short; 10 steps in all, dropout in each.
STEPS = 10
COMPARED = ("step", "loss", "ce", "kl", "grad_norm", "learning_rate")
CHECKPOINTS = "d2e_sft.checkpoints:"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models with and without dropout, and 19 samples."""
    folder = tmp_path_factory.mktemp("resume")
    model: GPT2LMHeadModel = tiny_model("gpt2")
    model.config.resid_pdrop = model.config.embd_pdrop = model.config.attn_pdrop = 0.1
    model.save_pretrained(folder / "dropout")
    tiny_tokenizer().save_pretrained(folder / "dropout")
    save_tiny_model(folder / "llama")
    write_samples(make_samples(19), folder / "train.jsonl")
    return folder


def recipe(world: Path, out: Path, **changes: Any) -> Path:
    """A recipe in `out`, which is to train into `out/run`; `changes` are its overrides, with `__` for the dot."""
    content: dict[str, dict[str, Any]] = {
        "model": {"name": str(world / "dropout")},
        "data": {"train": str(world / "train.jsonl"), "max_length": 1000},
        "train": {
            "output_dir": str(out / "run"), "epochs": 2, "batch_size": 4, "micro_batch_size": 2, "learning_rate": 3e-3,
            "logging_steps": 1, "save_steps": 2, "precision": "float32",
        },
    }  # fmt: skip
    for key, value in changes.items():
        section, _, name = key.partition("__")
        content[section][name] = value
    out.mkdir(exist_ok=True)
    path = out / "recipe.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def history(run: Path) -> list[dict[str, Any]]:
    """The logged steps, with the values that must not depend on a kill; JSON keeps every bit of a float."""
    entries = json.loads((run / "trainer_state.json").read_text())["log_history"]
    return [{name: entry[name] for name in COMPARED} for entry in entries if "loss" in entry]


def weights(run: Path) -> dict[str, torch.Tensor]:
    name = "model" if (run / "model.safetensors").is_file() else "adapter_model"
    return load_file(run / f"{name}.safetensors")


def assert_same_run(resumed: Path, whole: Path) -> None:
    assert history(resumed) == history(whole)
    ours, theirs = weights(resumed), weights(whole)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def killed_and_resumed(out: Path, path: Path, kills: Sequence[Kill]) -> Ended:
    """Train, die at each of the kills in turn, and let the last process come to its end."""
    for i, kill in enumerate(kills):
        ended = train(out, [path, *(["--resume"] if i else [])], kill)
        assert ended.status == -signal.SIGKILL, ended.printed
    ended = train(out, [path, "--resume"])
    assert ended.status == 0, ended.printed
    return ended


@pytest.fixture(scope="module")
def whole(world: Path) -> Path:
    """The run that was left alone."""
    out = world / "whole"
    ended = train(world, [recipe(world, out)])
    assert ended.status == 0, ended.printed
    assert [entry["step"] for entry in history(out / "run")] == list(range(1, STEPS + 1))
    assert [path.name for path in checkpoints_of(out / "run")] == ["checkpoint-10", "checkpoint-8"]
    assert not (out / "run" / ".saving").exists()
    return out / "run"


@pytest.mark.parametrize(
    ("kills", "checkpoint"),
    [
        ([after_step(1)], None),
        ([after_step(3)], "checkpoint-2"),
        ([after_step(7)], "checkpoint-6"),
        ([after_step(3), after_step(4), after_step(1), after_step(3)], "checkpoint-6"),
        ([Kill("transformers:Trainer._save_optimizer_and_scheduler", call=2)], "checkpoint-2"),
        ([Kill("transformers:Trainer._save_rng_state", call=2, after=True)], "checkpoint-2"),
        ([Kill(CHECKPOINTS + "write_whole", call=2)], "checkpoint-2"),
        ([Kill(CHECKPOINTS + "_move_checkpoint", call=2)], "checkpoint-2"),
        ([Kill(CHECKPOINTS + "_rotate", call=3)], "checkpoint-6"),
        ([Kill(CHECKPOINTS + "_move_model")], "checkpoint-10"),
    ],
    ids=[
        "before the first checkpoint",
        "after a step",
        "in the second epoch",
        "four times",
        "between model and optimizer",
        "before the checkpoint is sealed",
        "before the checksums are written",
        "before the checkpoint is in its place",
        "before the old checkpoint is removed",
        "while the model is saved",
    ],
)
def test_a_killed_run_continues_as_if_it_had_not_been(
    world: Path, whole: Path, tmp_path: Path, kills: list[Kill], checkpoint: str | None
) -> None:
    path = recipe(world, tmp_path)
    for i, kill in enumerate(kills):
        ended = train(tmp_path, [path, *(["--resume"] if i else [])], kill)
        assert ended.status == -signal.SIGKILL, ended.printed
    found = checkpoints_of(tmp_path / "run")
    assert (found[0].name if found else None) == checkpoint
    ended = train(tmp_path, [path, "--resume"])
    assert ended.status == 0, ended.printed
    assert "damaged" not in ended.printed
    assert_same_run(tmp_path / "run", whole)
    assert not (tmp_path / "run" / ".saving").exists()
    assert len(checkpoints_of(tmp_path / "run")) == 2
