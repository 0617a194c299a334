"""What a command changes beyond its own work: nothing that later code of the same process would notice."""

from __future__ import annotations

import csv
import locale
import logging
import os
import random
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import datasets
import matplotlib as mpl
import numpy as np
import pytest
import torch
from transformers.utils import logging as transformers_logging

from tests.command import d2e
from tests.factories import make_world, write_recipe

RANDOM = {"random: torch", "random: NumPy", "random: Python"}


def state() -> dict[str, Any]:
    """What all code of a process shares."""
    return {
        "environment": dict(os.environ),
        "working folder": str(Path.cwd()),
        "module path": list(sys.path),
        "random: torch": torch.get_rng_state().tolist(),
        "random: NumPy": repr(np.random.get_state()),
        "random: Python": random.getstate(),
        "default dtype": torch.get_default_dtype(),
        "threads": torch.get_num_threads(),
        "gradients": torch.is_grad_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "products": torch.get_float32_matmul_precision(),
        "signals": [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)],
        "limits": (csv.field_size_limit(), sys.getrecursionlimit(), sys.get_int_max_str_digits()),
        "locale": locale.setlocale(locale.LC_ALL),
        "time-out": socket.getdefaulttimeout(),
        "hooks": (sys.excepthook, sys.displayhook),
        "figures": dict(mpl.rcParams),
        "NumPy's errors": np.geterr(),
        "root logger": (logging.getLogger().level, list(logging.getLogger().handlers)),
        "levels": (transformers_logging.get_verbosity(), datasets.logging.get_verbosity()),
        "progress": datasets.is_progress_bar_enabled(),
    }


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything once, as what a library sets at its first import is no command's doing."""
    folder = make_world(tmp_path_factory.mktemp("process"), train=6, bench=6, seed=3)
    write_recipe(folder, folder / "recipe", "train.max_steps=2")
    for name, command in commands(folder, "first").items():
        assert d2e(*command) == 0, name
    return folder


def commands(folder: Path, turn: str) -> dict[str, list[str | Path]]:
    """Commands that end well; a later one reads what an earlier one wrote."""
    run, out = folder / f"run-{turn}", folder / turn
    bench: list[str | Path] = ["--bench", folder / "bench"]
    return {
        "data build": ["data", "build", "--datasets", "boxes,habit", "--out", out / "data", "boxes.boxes=3"],
        "dry run": ["train", folder / "recipe.yaml", f"train.output_dir={run}", "--dry-run"],
        "train": ["train", folder / "recipe.yaml", f"train.output_dir={run}"],
        "eval": ["eval", run, *bench, "--max-new-tokens", "4"],
        "likelihood": ["eval", run, *bench, "--answer", "likelihood", "--out", out / "likelihood"],
        "report": ["report", run, "--out", out / "report.html"],
        "inspect": ["inspect", run, *bench, "--out", out / "inspect.html"],
        "export": ["export", run, out / "exported"],
        "doctor": ["doctor"],
    }


@pytest.mark.parametrize("name", commands(Path(), ""))
def test_a_command_leaves_the_process_as_it_found_it(world: Path, name: str) -> None:
    command = commands(world, "second")[name]
    before = state()
    assert d2e(*command) == 0
    after = state()
    # A training seeds them, as transformers' Trainer does; nothing else draws from them.
    differs = {what for what in before if before[what] != after[what]} - (RANDOM if name == "train" else set())
    assert not differs, {what: (before[what], after[what]) for what in differs - RANDOM}


def test_a_command_that_fails_does_too(world: Path) -> None:
    before = state()
    assert d2e("train", world / "recipe.yaml", f"train.output_dir={world / 'run-first'}") == 1
    assert d2e("eval", world / "nothing", "--bench", world / "bench") == 1
    assert state() == before
