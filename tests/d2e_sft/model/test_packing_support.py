"""Which layout a model gets: what its architecture says, and what is found by asking the model."""

from __future__ import annotations

from typing import Any

import torch

from d2e_sft.config.recipe import D2ESection
from d2e_sft.model.packing_support import choose_layout
from tests.tiny import tiny_model


def test_a_model_whose_layers_see_more_than_the_mask_is_found_out_by_measuring() -> None:
    model = tiny_model("llama")
    plain = model.model.forward

    def smeared(*args: Any, **inputs: Any) -> Any:
        output = plain(*args, **inputs)
        output.last_hidden_state = output.last_hidden_state.cumsum(dim=1)  # as a recurrent layer would
        return output

    model.model.forward = smeared
    layout = choose_layout(model, D2ESection())
    assert layout.packing == "batched"
    assert "hidden states of packed sequences differ" in layout.describe()


def test_choosing_a_layout_draws_no_random_numbers() -> None:
    # A resumed run chooses again: its random numbers must go on where they were.
    model = tiny_model("llama")
    state = torch.get_rng_state()
    choose_layout(model, D2ESection())
    assert torch.equal(torch.get_rng_state(), state)


def test_an_attention_without_a_packed_form_is_named() -> None:
    layout = choose_layout(tiny_model("llama"), D2ESection(), "auto", "flash_attention_2")
    assert layout.packing == "batched"
    assert "'flash_attention_2' does not support packed rows" in layout.describe()


def test_a_window_that_a_layer_keeps_to_itself_is_found_out() -> None:
    # Some architectures put the window into the mask and do not hand it on; packed rows bring masks of their own.
    model = tiny_model("llama")
    model.config.sliding_window = 40
    layout = choose_layout(model, D2ESection())
    assert layout.packing == "batched"
    assert "does not pass its sliding window" in layout.describe()
