"""The shapes of published models, and the FLOPs that are counted of a step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM

from d2e_sft.bench.train import synthetic_rows
from d2e_sft.config.recipe import D2ESection
from d2e_sft.model.collation import Collator, model_inputs
from d2e_sft.model.forward import enable_checkpointing, forward_backward
from d2e_sft.model.shapes import SHAPES, Work, config_of, random_model
from d2e_sft.objective.attach import attach_objective
from tests.tiny import with_lora

CPU = torch.device("cpu")
# Of the published checkpoints.
PARAMETERS = {
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "smollm2-1.7b": 1_711_376_384,
    "gemma-3-270m": 268_098_176,
    "gemma-3-1b": 999_885_952,
    "gemma-3-4b": 4_300_079_472,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-3.1-8b": 8_030_261_248,
    "mistral-7b": 7_248_023_552,
    "qwen1.5-7b": 7_721_324_544,
    "llama-2-7b": 6_738_415_616,
    "deepseek-llm-7b": 6_910_365_696,
}


def test_every_shape_but_the_tiny_ones_is_compared_with_its_checkpoint() -> None:
    assert {name for name in SHAPES if not name.startswith("tiny")} == set(PARAMETERS)


@pytest.mark.parametrize(("shape", "parameters"), PARAMETERS.items())
def test_a_shape_has_as_many_parameters_as_the_published_model(shape: str, parameters: int) -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config_of(shape))
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


@pytest.mark.parametrize("gradients", ["all", "original"])
@pytest.mark.parametrize("changed", ["adapter", "checkpointing"])
def test_frozen_weights_and_recomputation_are_counted_as_they_are_computed(changed: str, gradients: Any) -> None:
    model, d2e = random_model("tiny", CPU), D2ESection(view_gradients=gradients)
    if changed == "adapter":
        model = with_lora(model)
    batch = Collator("batched", d2e.views, gradients)(synthetic_rows(3, 40, 300))
    attach_objective(model, d2e)
    if changed == "checkpointing":
        enable_checkpointing(model)
    with FlopCounterMode(display=False) as counted:
        forward_backward(model.train(), model_inputs(batch), "float32", CPU)
    products = sum(n for operator, n in counted.get_flop_counts()["Global"].items() if "mm" in str(operator))
    work = replace(Work.of_batch(batch, gradients), pairs=0, pairs_without_gradient=0)
    assert work.flops(model, recompute=changed == "checkpointing") == pytest.approx(products, rel=0.1)


def test_a_random_model_is_the_same_again_and_draws_no_number_of_others() -> None:
    before = torch.get_rng_state()
    first, second = (random_model("tiny", CPU).state_dict() for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert torch.equal(torch.get_rng_state(), before)


def test_attention_is_counted_by_the_pairs_that_attend() -> None:
    model = random_model("tiny", CPU)
    pair = Work(0, 0, 1).flops(model)
    assert pair == 3 * 4 * 2 * 4 * 8, "forward and backward, scores and values, layers, heads, width"
    assert Work(0, 0, 0, 0, 1).flops(model) == pair / 3
