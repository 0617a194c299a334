"""The flash kernel of the CPU over the blocks of a packed row."""

from __future__ import annotations

import torch

from d2e_sft.model.attention.registry import branch_attention
from d2e_sft.model.attention.segments import LayerOptions, branch_flash_attention
from d2e_sft.model.packing import TokenForest
from tests.d2e_sft.model.attention.cases import qkv, with_gradients


def test_the_flash_kernel_ignores_keys_outside_its_blocks(forest: TokenForest) -> None:
    plan = forest.plan(0, forest.lead)
    query, *others = qkv(plan.length, plan.end, torch.float64)
    longer = [torch.cat([t, t[:, :, :5] * 100], dim=2) for t in others]
    expected = branch_flash_attention(query, *others, plan.blocks, 0.3)
    assert torch.equal(branch_flash_attention(query, *longer, plan.blocks, 0.3), expected)


def test_bfloat16_sums_over_branches_in_float32(forest: TokenForest) -> None:
    plan = forest.plan(0, forest.length)
    exact = qkv(plan.length, plan.end, torch.float64)
    rounded = [tensor.detach().bfloat16().requires_grad_() for tensor in exact]
    ours, reference = (
        with_gradients(branch_attention(*given, plan, LayerOptions(0.3)), given) for given in (rounded, exact)
    )
    for one, other in zip(ours, reference, strict=True):
        assert (one.double() - other).norm() / other.norm() < 0.02
