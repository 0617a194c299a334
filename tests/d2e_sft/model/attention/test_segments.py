"""Attention over packed rows, by segment and by branch, against one dense mask: values and gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from d2e_sft.model.attention.registry import branch_attention
from d2e_sft.model.attention.segments import segment_attention
from tests.d2e_sft.model.attention.rows import attention_tensors, packed_forest, with_gradients


@pytest.mark.parametrize("attention", [branch_attention, segment_attention])
@pytest.mark.parametrize("window", [None, 25])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 1e-5)])
def test_packed_attention_equals_one_dense_mask(
    attention: Callable[..., Tensor], window: int | None, dtype: torch.dtype, tolerance: float
) -> None:
    forest = packed_forest()
    for start, end in ((0, forest.length), (0, forest.lead), (forest.lead, forest.length)):
        plan = forest.plan(start, end)
        tensors = attention_tensors(plan.length, end, dtype)
        mask = plan.mask(window=window)
        dense = F.scaled_dot_product_attention(*tensors, attn_mask=mask, scale=0.3, enable_gqa=True)
        ours = attention(*tensors, plan, 0.3, 0.0, window)
        for one, other in zip(with_gradients(ours, tensors), with_gradients(dense, tensors), strict=True):
            torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
