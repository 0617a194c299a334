"""Which layout a model gets: what its architecture says, and what is found by asking the model."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from d2e_sft.config.recipe import D2ESection
from d2e_sft.model.packing_support import choose_layout
from tests.tiny import tiny_model


def recurrent(model: Any) -> None:
    plain = model.model.forward

    def smeared(*args: Any, **inputs: Any) -> Any:
        output = plain(*args, **inputs)
        output.last_hidden_state = output.last_hidden_state.cumsum(dim=1)
        return output

    model.model.forward = smeared


def windowed(model: Any) -> None:
    model.config.sliding_window = 40  # which the layer does not pass on, as if only the mask had it


@pytest.mark.parametrize(
    ("change", "attention", "reason"),
    [
        (recurrent, None, "hidden states of packed sequences differ"),
        (windowed, None, "does not pass its sliding window"),
        (lambda model: None, "flash_attention_2", "packed rows (flash-attention has no mask for a tree of branches)"),
    ],
)
def test_a_model_is_batched_if_packing_would_not_be_exact(change: Any, attention: str | None, reason: str) -> None:
    model = tiny_model("llama")
    change(model)
    layout = choose_layout(model, D2ESection(), "auto", attention)
    assert layout.packing == "batched"
    assert reason in layout.describe()


def test_choosing_a_layout_draws_no_random_numbers() -> None:
    # A resumed run chooses again: its random numbers must go on where they were.
    model = tiny_model("llama")
    state = torch.get_rng_state()
    choose_layout(model, D2ESection())
    assert torch.equal(torch.get_rng_state(), state)
