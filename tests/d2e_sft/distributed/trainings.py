"""Trainings on two processes under `accelerate launch`, and what they must have in common with those on one.

Equal numbers alone would hide a wrong set-up (two runs of one process, DDP instead of DeepSpeed), so what each
process ran under is asserted as well. Everything is on the CPU, over gloo.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from d2e_sft.config.recipe import load_recipe
from d2e_sft.train.run import train_recipe
from d2e_sft.util.paths import bundled
from tests.command import launch
from tests.factories import log_history

# 20 samples: a process's five micro-batches make optimiser steps of two, two and one. Five held-out ones: three
# batches, of which one process has one only.
KEYS = ("max_steps=6", "batch_size=8", "learning_rate=1e-3", "sample_predictions=2")
STEPS = 6
Trained = tuple[Path, list[dict[str, Any]]]
"""A run folder, and what each process recorded."""
OTHERS = {
    "teacher": ["d2e.objective=teacher"],
    # The refined view of every third sample is the original one, so that some micro-batches have no other view.
    "refined-only": [
        *("d2e.debias=false", "d2e.view_gradients=original", "train.packing=batched"),
        "train.per_device_train_batch_size=1",
    ],
    # The reference's log-probabilities are shared among the processes, and steps differ in their pairs.
    "prefer": ["d2e.objective=prefer", "d2e.sft_weight=0.5"],
    "prefer-orpo": ["d2e.objective=prefer", "d2e.prefer_form=orpo", "train.micro_batch_tokens=700"],
    # The other views run in a forward of their own, without gradient, through the same final norm.
    "original-gradient": ["d2e.view_gradients=original"],
    "tied": ["model.name={world}/tied"],
    "balanced": ["data.balance=0.5"],
}
TERMS = {
    "prefer": ("ce", "preference"),
    "prefer-orpo": ("ce", "preference"),
    "teacher": ("ce", "refined_ce", "kl"),
    "refined-only": ("ce", "kl"),
    "original-gradient": ("ce", "kl"),
    "tied": ("ce", "kl"),
    "balanced": ("ce", "kl"),
}
LORA = ["model.lora.r=4", "model.lora.target_modules=[q_proj, down_proj]"]
# Seen: 2e-7 of a loss, 1e-7 of a weight (2e-6 of an adapter's): the order of a sum decides its rounding. A wrong
# divisor or a lost sample would show as a percent of the loss. Adam's step is the learning rate (1e-3) whatever the
# gradient's size, so where a gradient is almost zero, rounding moves a weight by a part of it: a hundredth is allowed.
LOSS_RTOL = 1e-5
WEIGHT_ATOL = 1e-5


def others(world: Path, objective: str) -> list[str]:
    return [override.format(world=world) for override in OTHERS[objective]]


def one_process(world: Path, run: Path, *overrides: str) -> Path:
    """The run folder of a training on one process, which is this one."""
    train_recipe(load_recipe(str(world / "recipe.yaml"), [f"train.output_dir={run}", *overrides]))
    return run


def two_processes(world: Path, launcher: str, trainings: dict[str, list[str]]) -> dict[str, Trained]:
    """Train on two processes, one training (folder → overrides, and `--resume=CHECKPOINT`) after the other."""
    results = world / f"{launcher}-{next(iter(trainings))}-results"
    results.mkdir()
    runs = {name: world / name for name in trainings}
    arguments = (
        "--config_file", bundled("launch") / "accelerate" / f"{launcher}.yaml",
        "--num_processes", "2", "--main_process_port", "0",
        Path(__file__).with_name("worker.py"), results,
        world / "recipe.yaml",
        *(json.dumps([f"train.output_dir={runs[name]}", *overrides]) for name, overrides in trainings.items()),
    )  # fmt: skip
    ended = launch(results, "accelerate.commands.launch:main", *arguments)
    assert ended.status == 0, ended.printed[-3000:]
    files = sorted(results.glob("rank-*.json"))
    assert [file.name for file in files] == ["rank-0.json", "rank-1.json"]
    by_rank = [json.loads(file.read_text()) for file in files]
    return {name: (run, [records[i] for records in by_rank]) for i, (name, run) in enumerate(runs.items())}


def logs(run: Path, of: str = "loss") -> list[dict[str, Any]]:
    return [entry for entry in log_history(run) if of in entry]


def assert_trained_alike(
    records: list[dict[str, Any]], run: Path, one: Path, terms: tuple[str, ...] = ("ce", "kl")
) -> None:
    """Each step, the weights, and after each epoch: each held-out row counted once, and the same text decoded."""
    assert len(logs(one)) == STEPS
    for record in records:
        assert (record["world_size"], record["backend"]) == (2, "gloo")
        shares = tuple({"kl_rows"} & logs(one)[0].keys())
        assert_same_values(record["logs"], logs(one), ("grad_norm", "mean_token_accuracy", *shares), terms)
    (file,) = one.glob("*model.safetensors")  # of an adapter, or all weights
    assert_same_weights(run / file.name, file)
    assert [entry["step"] for entry in logs(one, "eval_loss")] == [3, 6]
    of_views = {"eval_plain_accuracy", "eval_bias_share", "eval_kl_rows"} & logs(one, "eval_loss")[0].keys()
    shares = ("eval_mean_token_accuracy", *of_views)
    evaluated = tuple(f"eval_{term}" for term in terms)
    assert_same_values(logs(run, "eval_loss"), logs(one, "eval_loss"), shares, evaluated, "eval_loss")
    texts = [(folder / "_held_out_predictions.jsonl").read_text() for folder in (run, one)]
    assert len(texts[0].splitlines()) == 4
    assert texts[0] == texts[1]


def assert_same_values(
    ours: list[dict[str, Any]],
    theirs: list[dict[str, Any]],
    values: tuple[str, ...],
    terms: tuple[str, ...],
    loss: str = "loss",
) -> None:
    """Values relative to themselves, terms of the loss, which may be small, relative to it too."""
    for one, other in zip(ours, theirs, strict=True):
        for key in (loss, *values, *terms):
            rounding = LOSS_RTOL * other[loss] if key in terms else 0
            assert one[key] == pytest.approx(other[key], rel=LOSS_RTOL, abs=rounding), (one["step"], key)
            assert key not in terms or other[key] > 1e-4, "each term must be there to be compared"


def assert_same_weights(ours: Path, theirs: Path) -> None:
    found, expected = load_file(ours), load_file(theirs)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].shape == tensor.shape, name
        assert found[name].numel() > 0, name
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=WEIGHT_ATOL, msg=lambda m, n=name: f"{n}: {m}")
