"""torch's flash kernel for CPU, block by block."""

from __future__ import annotations

from typing import Any

import torch

from d2e_sft.model.attention.cpu import branch_flash_attention
from tests.d2e_sft.model.attention.rows import attention_tensors, packed_forest


def test_the_kernel_takes_keys_that_no_block_names() -> None:
    forest = packed_forest()
    plan = forest.plan(0, forest.lead)
    tensors = attention_tensors(plan.length, plan.end, torch.float64)
    alone = branch_flash_attention(*tensors, plan.blocks, 0.3)
    longer: list[Any] = [tensors[0], *(torch.cat([t, t[:, :, :5] * 100], dim=2) for t in tensors[1:])]
    assert torch.equal(branch_flash_attention(*longer, plan.blocks, 0.3), alone)
