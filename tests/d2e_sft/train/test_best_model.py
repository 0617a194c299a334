"""The best model of a run by any value of its evaluations, and stopping where none gets better."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from d2e_sft.config.recipe import Recipe, load_recipe
from d2e_sft.model.loading import load_model
from d2e_sft.model.storage.seal import damage
from d2e_sft.train.run import train_recipe
from d2e_sft.train.run_folder import checkpoints_of
from tests.factories import log_history, make_world, write_recipe
from tests.tiny import make_sample


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    held_out = [make_sample(i, split="dev", answers=["a stone"]) for i in range(4)]
    aligned = [make_sample(i, subset="aligned") for i in range(4)]
    probe = [*aligned, *(make_sample(i + 9, subset="conflict") for i in range(4))]
    return make_world(tmp_path_factory.mktemp("best"), train=4, dev=held_out, probe=probe, bench=0)


def recipe(world: Path, run: Path, *overrides: str) -> Recipe:
    """A learning rate at which held-out loss soon rises; evaluated and saved at every step."""
    keys = {
        "max_steps": 8, "per_device_train_batch_size": 4, "learning_rate": 0.1, "eval_steps": 1, "save_steps": 1,
        "lr_scheduler_type": "constant", "warmup_steps": 0, "sample_predictions": 2, "load_best_model_at_end": "true",
    }  # fmt: skip
    given = [f"data.dev={world}/dev.jsonl", "eval.max_new_tokens=3", *(f"train.{k}={v}" for k, v in keys.items())]
    return load_recipe(str(write_recipe(world, run, *given)), overrides)


def state(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "trainer_state.json").read_text())
    return found


def evaluations(run: Path, name: str = "eval_loss") -> list[float]:
    return [entry[name] for entry in log_history(run) if name in entry]


def test_the_run_ends_with_the_weights_of_its_best_evaluation(world: Path, tmp_path: Path) -> None:
    run = train_recipe(recipe(world, tmp_path / "run", "train.early_stopping_patience=2"))
    losses = evaluations(run)
    best = losses.index(min(losses)) + 1
    assert best < len(losses) < 8, "the loss rose, and after two evaluations without progress training stopped"
    assert len(losses) == best + 2
    assert state(run)["best_model_checkpoint"] == str(run / f"checkpoint-{best}")
    kept = checkpoints_of(run)
    assert [folder.name for folder in kept] == [f"checkpoint-{best + 2}", f"checkpoint-{best}"]
    assert [damage(folder, cached=False) for folder in kept] == [None, None]
    assert json.loads((kept[0] / "trainer_state.json").read_text())["best_model_checkpoint"] == str(kept[1])
    whole, expected = (load_model(str(folder)).model.state_dict() for folder in (run, kept[1]))
    assert all(torch.equal(whole[name], weights) for name, weights in expected.items())
    # Resumed, it has stopped.
    train_recipe(recipe(world, tmp_path / "run", "train.early_stopping_patience=2"), resume=True)
    assert evaluations(run) == losses


def test_any_value_of_an_evaluation_may_say_what_is_best(world: Path, tmp_path: Path) -> None:
    probe = f"data.probe={world}/probe.jsonl"
    for metric, rows, which in (("eval_f1", [], max), ("habit_gap", [probe, "data.dev=null"], min)):
        options = (*rows, f"train.metric_for_best_model={metric}", "train.max_steps=2")
        run = train_recipe(recipe(world, tmp_path / metric, *options))
        values = evaluations(run, f"eval_{metric.removeprefix('eval_')}")[-2:]  # without that before training
        best = which(values)
        assert state(run)["best_metric"] == best
        assert state(run)["best_global_step"] == values.index(best) + 1
