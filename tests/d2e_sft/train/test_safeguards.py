"""A training stops at a loss or weight that is NaN, at full memory, and at SIGTERM."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from d2e_sft.model.storage.seal import damage
from d2e_sft.train import trainer as trainer_module
from d2e_sft.train.run_folder import checkpoints_of
from tests.command import d2e, refusal_of
from tests.factories import write_recipe


@pytest.fixture
def folder(world: Path, tmp_path: Path) -> Path:
    """A recipe of 5 steps with a checkpoint each, two micro-batches of two samples a step."""
    keys = ("max_steps=5", "save_steps=1", "save_total_limit=1", "logging_steps=5")
    write_recipe(world, tmp_path / "run", *(f"train.{key}" for key in keys))
    return tmp_path


class AtMicroBatch:
    """Does something at one micro-batch of a training."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int, act: Any) -> None:
        original, self.seen = trainer_module.D2ETrainer.compute_loss, 0

        def compute_loss(trainer: Any, model: Any, inputs: Any, *rest: Any, **options: Any) -> Any:
            self.seen += 1
            loss = original(trainer, model, inputs, *rest, **options)
            return act(trainer, loss) if self.seen == number else loss

        monkeypatch.setattr(trainer_module.D2ETrainer, "compute_loss", compute_loss)


def test_a_loss_that_is_no_number_stops_with_its_samples_and_the_last_good_checkpoint(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    AtMicroBatch(monkeypatch, 6, lambda trainer, loss: loss * float("inf"))  # the second of step 3
    said = refusal_of("train", folder / "run.yaml")
    assert "the loss became inf at step 3" in said
    record = json.loads((folder / "run" / "non_finite.json").read_text())
    assert record["step"] == 3
    assert record["losses"] == ["inf"]
    assert len(record["samples"]) == 2
    assert all(name in said and name.endswith(" of made-up") for name in record["samples"])
    (checkpoint,) = checkpoints_of(folder / "run")
    assert checkpoint.name == "checkpoint-2"
    assert damage(checkpoint, cached=False) is None
    assert not (folder / "run" / "model.safetensors").exists()


def test_weights_that_are_no_numbers_replace_no_checkpoint(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(trainer: Any, loss: Any) -> Any:
        loss.register_hook(lambda gradient: gradient * float("nan"))  # a finite loss, and gradients that are not
        return loss

    AtMicroBatch(monkeypatch, 6, spoil)
    assert "became NaN or infinite at step 3" in refusal_of("train", folder / "run.yaml")
    assert [path.name for path in checkpoints_of(folder / "run")] == ["checkpoint-2"]


def weights_of(folder: Path) -> torch.Tensor:
    return torch.cat([tensor.flatten() for _, tensor in sorted(load_file(folder / "model.safetensors").items())])


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: you tried …"),
        MemoryError(),
    ],
)
def test_too_little_memory_names_lengths_and_settings(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail(trainer: Any, loss: Any) -> Any:
        raise error

    AtMicroBatch(monkeypatch, 4, fail)
    said = refusal_of("train", folder / "run.yaml")
    assert "out of memory at step 2, in a micro-batch of 2 samples" in said
    assert said.count(" of made-up: original ") == 2
    assert "imagined " in said
    settings = ("train.per_device_train_batch_size", "data.max_length", "train.gradient_checkpointing", "--resume")
    assert all(setting in said for setting in settings)


@pytest.mark.parametrize(
    ("saving", "kept"),
    [
        ("2", "checkpoint-2 is saved; --resume continues"),
        ("null", "no checkpoint was saved; train.save_steps=N saves one every N steps"),
    ],
)
def test_ctrl_c_says_what_is_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], saving: str, kept: str
) -> None:
    def interrupt(trainer: Any, loss: Any) -> Any:
        raise KeyboardInterrupt

    AtMicroBatch(monkeypatch, 5, interrupt)
    assert d2e("train", folder / "run.yaml", f"train.save_steps={saving}") == 130
    assert f"d2e: stopped; {kept}" in " ".join(capsys.readouterr().err.split())


def test_sigterm_before_the_first_step_says_that_nothing_was_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("d2e_sft.train.run.RunSamples.of", lambda recipe: os.kill(os.getpid(), signal.SIGTERM))
    assert d2e("train", folder / "run.yaml") == 75
    assert "ended by SIGTERM; nothing was written" in capsys.readouterr().err
    assert not (folder / "run").exists()


def test_sigterm_saves_a_checkpoint_where_none_was_due_and_ends_with_75(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def terminate(trainer: Any, loss: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return loss

    with monkeypatch.context() as patch:
        AtMicroBatch(patch, 5, terminate)  # the first micro-batch of step 3
        assert d2e("train", folder / "run.yaml", "train.save_steps=null") == 75
    assert "ended by SIGTERM; checkpoint-3 is saved; --resume continues" in capsys.readouterr().err
    assert [path.name for path in checkpoints_of(folder / "run")] == ["checkpoint-3"]
    assert not (folder / "run" / "model.safetensors").exists()
    assert d2e("train", folder / "run.yaml", "train.save_steps=null", "--resume") == 0
    state = json.loads((folder / "run" / "trainer_state.json").read_text())
    assert state["global_step"] == 5
    assert d2e("train", folder / "run.yaml", f"train.output_dir={folder / 'whole'}", "train.save_steps=null") == 0
    one, other = ((folder / name / "model.safetensors").read_bytes() for name in ("run", "whole"))
    assert one == other
