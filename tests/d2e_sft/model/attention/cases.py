"""A forest and tensors for it, as the tests of attention over packed rows share them."""

from __future__ import annotations

import random

import torch
from torch import Tensor

from d2e_sft.model.packing import TokenForest, pack


def three_groups() -> TokenForest:
    """Three groups of three sequences that share prefixes; one sequence of each group leads."""
    source = random.Random(0)

    def some(count: int) -> list[int]:
        return [source.randrange(1000) for _ in range(count)]

    system, group = some(40), []
    for _ in range(3):
        head = [*system, *some(source.randint(8, 20))]
        group += [[*head, *some(source.randint(1, 50))] for _ in range(3)]
    return pack([group], leading=3).forest


def qkv(queries: int, keys: int, dtype: torch.dtype) -> list[Tensor]:
    """(1, H, tokens, D) as models make them: transposed views; fewer key heads than query heads."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((1, queries, 4, 16), (1, keys, 2, 16), (1, keys, 2, 16))
    return [torch.randn(s, generator=generator).to(dtype).transpose(1, 2).requires_grad_() for s in shapes]


def with_gradients(output: Tensor, tensors: list[Tensor]) -> list[Tensor]:
    """The output and the gradients of a weighted sum of it."""
    weights = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view(output.shape)
    return [output, *torch.autograd.grad((output * weights).sum(), tensors)]
