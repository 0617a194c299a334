"""What a run starts from: its tokens, its precision and its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import PartialState

from d2e_sft.train.checks import check_recipe
from d2e_sft.train.prepare import load_on_all, precision_for, settle_recipe
from d2e_sft.train.rows import read_rows
from tests.d2e_sft.train.test_checks import recipe


def test_a_prepared_run_has_its_tokens_and_its_precision(world: Path) -> None:
    asked = recipe(world, num_train_epochs=3, batch_size=4, per_device_train_batch_size=1)
    check_recipe(asked, processes=2)
    settle_recipe(asked)
    assert asked.train.bf16 is not None
    rows = read_rows(asked, "training", load_on_all(asked, PartialState(cpu=True)), progress=False).dataset
    assert len(rows) == 8
    assert set(rows[0]) == {"original", "imagined", "refined", "answer", "content", "context"}


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
