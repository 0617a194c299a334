"""What a run starts from: its files, precision, micro-batches and steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import PartialState

from d2e_sft.config.recipe import Recipe
from d2e_sft.train.checks import check_recipe, count_steps
from d2e_sft.train.prepare import load_on_all, precision_for, settle_recipe
from d2e_sft.train.rows import read_rows
from d2e_sft.util.errors import UserError


def recipe(folder: Path, **train: Any) -> Recipe:
    return Recipe.model_validate(
        {
            "model": {"name": str(folder / "model")},
            "data": {"train": str(folder / "train.jsonl"), "max_length": 1000},
            "train": {"output_dir": str(folder / "run"), "batch_size": 8, "per_device_train_batch_size": 2, **train},
        }
    )


def test_a_prepared_run_has_its_tokens_and_its_steps(world: Path) -> None:
    asked = recipe(world, num_train_epochs=3, batch_size=4, per_device_train_batch_size=1)
    check_recipe(asked, processes=2)
    settle_recipe(asked)
    assert asked.train.bf16 is not None
    rows = read_rows(asked, "training", load_on_all(asked, PartialState(cpu=True)), progress=False).dataset
    assert len(rows) == 8
    assert set(rows[0]) == {"original", "imagined", "refined", "answer", "content", "context"}
    steps = count_steps(asked.train, 7, processes=2)
    assert (steps.accumulation, steps.micro_batches, steps.per_epoch, steps.total) == (2, 4, 2, 6)


def test_an_optimiser_that_is_not_installed_is_named_before_the_model_is_loaded(world: Path) -> None:
    with pytest.raises(UserError, match=r"train.optim=grokadamw: needs the package grokadamw") as caught:
        check_recipe(recipe(world, optim="grokadamw"), processes=1)
    assert "pip install grokadamw" in str(caught.value)
    check_recipe(recipe(world, optim="sgd"), processes=1)


def test_random_weights_are_those_of_the_seed(world: Path) -> None:
    state = PartialState(cpu=True)

    def embeddings(seed: int, weights: str = "random") -> Any:
        asked = recipe(world, batch_size=2, seed=seed)
        asked.model.weights = weights  # type: ignore[assignment]
        return load_on_all(asked, state).model.get_input_embeddings().weight

    assert torch.equal(embeddings(1), embeddings(1))
    assert not torch.equal(embeddings(1), embeddings(2))
    assert torch.equal(embeddings(1, "pretrained"), embeddings(2, "pretrained"))


def test_what_needs_no_model_is_refused_before_one_is_loaded(world: Path) -> None:
    for key in ("train", "dev", "probe"):
        asked = recipe(world)
        setattr(asked.data, key, "none.jsonl")
        with pytest.raises(UserError, match=r"none.jsonl: no such file"):
            check_recipe(asked, processes=1)
    with pytest.raises(
        UserError, match=r"cannot be split over 3 processes in micro-batches of train.per_device_train_batch_size=2"
    ):
        check_recipe(recipe(world), processes=3)


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


def test_float16_weights_are_refused(tmp_path: Path) -> None:
    asked = recipe(tmp_path)
    asked.model.dtype = "float16"
    with pytest.raises(UserError, match="gradients of float16 weights underflow"):
        check_recipe(asked, processes=1)
