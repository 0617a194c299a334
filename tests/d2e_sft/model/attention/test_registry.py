"""Attention over packed rows, as it is registered: rounding and dropout."""

from __future__ import annotations

import pytest
import torch

from d2e_sft.model.attention.registry import branch_attention
from tests.d2e_sft.model.attention.rows import attention_tensors, packed_forest, with_gradients


def test_bfloat16_sums_over_branches_in_float32() -> None:
    forest = packed_forest()
    plan = forest.plan(0, forest.length)
    exact = attention_tensors(plan.length, plan.end, torch.float64)
    rounded = [tensor.detach().bfloat16().requires_grad_() for tensor in exact]
    reference = with_gradients(branch_attention(*exact, plan, 0.3, 0.0, None), exact)
    ours = with_gradients(branch_attention(*rounded, plan, 0.3, 0.0, None), rounded)
    for one, other in zip(ours, reference, strict=True):
        assert (one.double() - other).norm() / other.norm() < 0.02


def test_attention_dropout_drops_as_often_as_asked() -> None:
    forest = packed_forest()
    plan = forest.plan(0, forest.length)
    query, key, value = (tensor.detach() for tensor in attention_tensors(plan.length, plan.end, torch.float32))
    torch.manual_seed(0)
    ones = torch.ones_like(value)
    # With values of one the output is the sum of the weights kept, in expectation 1 whatever the ratio.
    total = torch.stack([branch_attention(query, key, ones, plan, 0.3, 0.25, None) for _ in range(30)])
    assert total.mean().item() == pytest.approx(1, abs=0.01)
    assert total.std().item() > 0.05
