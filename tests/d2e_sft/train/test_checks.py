"""What is checked and counted of a run before its model is loaded, and its precision."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import PartialState

from d2e_sft.config.recipe import Recipe
from d2e_sft.train import checks
from d2e_sft.train.checks import count_steps
from d2e_sft.train.prepare import load_on_all, precision_for
from d2e_sft.util.errors import UserError


def recipe(folder: Path, **train: Any) -> Recipe:
    return Recipe.model_validate(
        {
            "model": {"name": str(folder / "model")},
            "data": {"train": str(folder / "train.jsonl"), "max_length": 1000},
            "train": {"output_dir": str(folder / "run"), "batch_size": 8, "per_device_train_batch_size": 2, **train},
        }
    )


def test_steps_are_counted_as_processes_share_a_batch(tmp_path: Path) -> None:
    asked = recipe(tmp_path, num_train_epochs=3, batch_size=4, per_device_train_batch_size=1)
    steps = count_steps(asked, 7, processes=2)
    assert (steps.accumulation, steps.micro_batches, steps.per_epoch, steps.total) == (2, 4, 2, 6)


@pytest.mark.parametrize(
    ("batch", "most", "processes", "expected"),  # a micro-batch and their number, or what is said
    [
        (8, 8, 2, (4, 1)),
        (24, 8, 2, (6, 2)),
        (64, 8, 2, (8, 4)),
        (8, 2, 4, (2, 1)),
        (8, 8, 3, "set B=6 M=2 or B=9 M=3, or start 2 processes"),
        (2, 1, 4, "set B=4 M=1, or start 2 processes"),
    ],
)
def test_processes_share_a_batch_equally(
    tmp_path: Path, batch: int, most: int, processes: int, expected: tuple[int, int] | str
) -> None:
    asked = recipe(tmp_path, batch_size=batch, per_device_train_batch_size=most)
    if isinstance(expected, tuple):
        steps = count_steps(asked, 100, processes)
        assert (steps.micro_batch, steps.accumulation) == expected
        assert steps.micro_batch * steps.accumulation * processes == batch
        return
    with pytest.raises(UserError) as refused:
        count_steps(asked, 100, processes)
    said = expected.replace("B=", "train.batch_size=").replace("M=", "train.per_device_train_batch_size=")
    assert refused.value.remedy == said


def test_each_run_of_a_process_has_its_own_project_unless_the_user_names_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    with checks.trackers([], "none"):
        assert "WANDB_PROJECT" not in os.environ
    for project in ("one", "two"):
        with checks.trackers(["wandb"], project):
            assert os.environ["WANDB_PROJECT"] == project
        assert "WANDB_PROJECT" not in os.environ, "a later training of the process would be filed there"
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    with checks.trackers(["wandb"], "three"):
        assert os.environ["WANDB_PROJECT"] == "mine"
    assert os.environ["WANDB_PROJECT"] == "mine"


def test_a_tracker_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    monkeypatch.setattr(checks, "find_spec", lambda name: None if name == "swanlab" else object())
    with checks.trackers(["wandb"], "d2e-sft"):
        pass
    said = r"train\.report_to=swanlab: the package swanlab is not installed"
    with pytest.raises(UserError, match=said), checks.trackers(["wandb", "swanlab"], "d2e-sft"):
        pass


def test_random_weights_are_those_of_the_seed(world: Path) -> None:
    state = PartialState(cpu=True)

    def embeddings(seed: int, weights: str = "random") -> Any:
        asked = recipe(world, batch_size=2, seed=seed)
        asked.model.weights = weights  # type: ignore[assignment]
        return load_on_all(asked, state).model.get_input_embeddings().weight

    assert torch.equal(embeddings(1), embeddings(1))
    assert not torch.equal(embeddings(1), embeddings(2))
    assert torch.equal(embeddings(1, "pretrained"), embeddings(2, "pretrained"))


@pytest.mark.parametrize(("fast", "chosen"), [(True, "bfloat16"), (False, "float32")])
def test_auto_takes_what_this_cpu_computes_in_hardware(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fast: bool, chosen: str
) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("d2e_sft.model.device.cpu_has_bfloat16", lambda: fast)
    asked = recipe(tmp_path)
    asked.train.bf16 = None
    assert precision_for(asked) == chosen
