"""Attention over packed rows against one dense mask: values and gradients."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from d2e_sft.model.attention.cpu import branch_flash_attention
from d2e_sft.model.attention.flex import flex_agrees, flex_attention
from d2e_sft.model.attention.registry import branch_attention
from d2e_sft.model.attention.segments import segment_attention
from d2e_sft.model.packing import TokenForest, pack


def _forest(seed: int = 0) -> TokenForest:
    source = random.Random(seed)

    def some(count: int) -> list[int]:
        return [source.randrange(1000) for _ in range(count)]

    system = some(40)
    group = []
    for _ in range(3):
        head = [*system, *some(source.randint(8, 20))]
        group += [[*head, *some(source.randint(1, 50))] for _ in range(3)]
    return pack([group], leading=3).forest


def _tensors(queries: int, keys: int, dtype: torch.dtype, seed: int = 0) -> list[Tensor]:
    """(1, H, tokens, D) as models make them: transposed views; fewer key heads than query heads."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((1, queries, 4, 16), (1, keys, 2, 16), (1, keys, 2, 16))
    return [torch.randn(s, generator=generator).to(dtype).transpose(1, 2).requires_grad_() for s in shapes]


def _with_gradients(output: Tensor, tensors: list[Tensor]) -> list[Tensor]:
    weights = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view(output.shape)
    return [output, *torch.autograd.grad((output * weights).sum(), tensors)]


@pytest.mark.parametrize("attention", [branch_attention, segment_attention])
@pytest.mark.parametrize("window", [None, 25])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 1e-5)])
def test_packed_attention_equals_one_dense_mask(
    attention: Callable[..., Tensor], window: int | None, dtype: torch.dtype, tolerance: float
) -> None:
    forest = _forest()
    for start, end in ((0, forest.length), (0, forest.lead), (forest.lead, forest.length)):
        plan = forest.plan(start, end)
        tensors = _tensors(plan.length, end, dtype)
        mask = plan.mask(window=window)
        dense = F.scaled_dot_product_attention(*tensors, attn_mask=mask, scale=0.3, enable_gqa=True)
        ours = attention(*tensors, plan, 0.3, 0.0, window)
        for one, other in zip(_with_gradients(ours, tensors), _with_gradients(dense, tensors), strict=True):
            torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


def test_flex_attention_follows_the_same_plan() -> None:
    # Forward only: torch has no backward of flex_attention on CPU.
    forest = _forest()
    for window in (None, 25):
        plan = forest.plan(0, forest.length)
        tensors = [tensor.detach() for tensor in _tensors(plan.length, plan.end, torch.float32)]
        expected = segment_attention(*tensors, plan, 0.3, 0.0, window)
        torch.testing.assert_close(flex_attention(*tensors, plan, 0.3, 0.0, window), expected, rtol=1e-5, atol=1e-5)


def test_flex_attention_is_not_chosen_where_it_has_no_backward() -> None:
    assert not flex_agrees(torch.device("cpu"), heads=4, key_heads=2, width=16)


def test_bfloat16_sums_over_branches_in_float32() -> None:
    forest = _forest()
    plan = forest.plan(0, forest.length)
    exact = _tensors(plan.length, plan.end, torch.float64)
    rounded = [tensor.detach().bfloat16().requires_grad_() for tensor in exact]
    reference = _with_gradients(branch_attention(*exact, plan, 0.3, 0.0, None), exact)
    ours = _with_gradients(branch_attention(*rounded, plan, 0.3, 0.0, None), rounded)
    for one, other in zip(ours, reference, strict=True):
        assert (one.double() - other).norm() / other.norm() < 0.02


def test_attention_dropout_drops_as_often_as_asked() -> None:
    forest = _forest()
    plan = forest.plan(0, forest.length)
    query, key, value = (tensor.detach() for tensor in _tensors(plan.length, plan.end, torch.float32))
    torch.manual_seed(0)
    ones = torch.ones_like(value)
    # With values of one the output is the sum of the weights kept, in expectation 1 whatever the ratio.
    total = torch.stack([branch_attention(query, key, ones, plan, 0.3, 0.25, None) for _ in range(30)])
    assert total.mean().item() == pytest.approx(1, abs=0.01)
    assert total.std().item() > 0.05


def test_the_kernel_takes_keys_that_no_block_names() -> None:
    forest = _forest()
    plan = forest.plan(0, forest.lead)
    tensors = _tensors(plan.length, plan.end, torch.float64)
    alone = branch_flash_attention(*tensors, plan.blocks, 0.3)
    longer: list[Any] = [tensors[0], *(torch.cat([t, t[:, :, :5] * 100], dim=2) for t in tensors[1:])]
    assert torch.equal(branch_flash_attention(*longer, plan.blocks, 0.3), alone)
