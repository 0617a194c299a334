"""flex_attention over packed rows: the same numbers, and not chosen where it cannot train."""

from __future__ import annotations

import torch

from d2e_sft.model.attention.flex import flex_agrees, flex_attention
from d2e_sft.model.attention.segments import segment_attention
from tests.d2e_sft.model.attention.rows import attention_tensors, packed_forest


def test_flex_attention_follows_the_same_plan() -> None:
    # Forward only: torch has no backward of flex_attention on CPU.
    forest = packed_forest()
    for window in (None, 25):
        plan = forest.plan(0, forest.length)
        tensors = [tensor.detach() for tensor in attention_tensors(plan.length, plan.end, torch.float32)]
        expected = segment_attention(*tensors, plan, 0.3, 0.0, window)
        torch.testing.assert_close(flex_attention(*tensors, plan, 0.3, 0.0, window), expected, rtol=1e-5, atol=1e-5)


def test_flex_attention_is_not_chosen_where_it_has_no_backward() -> None:
    assert not flex_agrees(torch.device("cpu"), heads=4, key_heads=2, width=16)
