"""Attention over packed rows: each implementation equals one dense mask, values and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from d2e_sft.model.attention.registry import branch_attention
from d2e_sft.model.attention.segments import LayerOptions, segment_attention
from d2e_sft.model.packing import TokenForest
from tests.d2e_sft.model.attention.cases import qkv, with_gradients


@pytest.mark.parametrize("attention", [branch_attention, segment_attention])
@pytest.mark.parametrize("window", [None, 25])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 1e-5)])
def test_packed_attention_equals_one_dense_mask(
    forest: TokenForest, attention: Any, window: int | None, dtype: torch.dtype, tolerance: float
) -> None:
    for start, end in ((0, forest.length), (0, forest.lead), (forest.lead, forest.length)):
        plan = forest.plan(start, end)
        tensors = qkv(plan.length, end, dtype)
        mask = plan.mask(window=window)
        dense = F.scaled_dot_product_attention(*tensors, attn_mask=mask, scale=0.3, enable_gqa=True)
        ours = attention(*tensors, plan, LayerOptions(0.3, window=window))
        torch.testing.assert_close(
            with_gradients(ours, tensors), with_gradients(dense, tensors), rtol=tolerance, atol=tolerance
        )


def test_dropout_keeps_the_expected_output(forest: TokenForest) -> None:
    plan = forest.plan(0, forest.length)
    query, key, value = (tensor.detach() for tensor in qkv(plan.length, plan.end, torch.float32))
    torch.manual_seed(0)
    ones, options = torch.ones_like(value), LayerOptions(0.3, dropout=0.25)
    # With values of one the output is the sum of the kept weights, in expectation 1.
    total = torch.stack([branch_attention(query, key, ones, plan, options) for _ in range(30)])
    assert total.mean().item() == pytest.approx(1, abs=0.01)
    assert total.std().item() > 0.05
