"""A packed row and tensors to attend over, shared by the tests of the attention functions."""

from __future__ import annotations

import random

import torch
from torch import Tensor

from d2e_sft.model.packing import TokenForest, pack


def packed_forest(seed: int = 0) -> TokenForest:
    """Three groups of three sequences that share prefixes, two of each group read after the first."""
    source = random.Random(seed)

    def some(count: int) -> list[int]:
        return [source.randrange(1000) for _ in range(count)]

    system = some(40)
    group = []
    for _ in range(3):
        head = [*system, *some(source.randint(8, 20))]
        group += [[*head, *some(source.randint(1, 50))] for _ in range(3)]
    return pack([group], leading=3).forest


def attention_tensors(queries: int, keys: int, dtype: torch.dtype, seed: int = 0) -> list[Tensor]:
    """(1, H, tokens, D) as models make them: transposed views; fewer key heads than query heads."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((1, queries, 4, 16), (1, keys, 2, 16), (1, keys, 2, 16))
    return [torch.randn(s, generator=generator).to(dtype).transpose(1, 2).requires_grad_() for s in shapes]


def with_gradients(output: Tensor, tensors: list[Tensor]) -> list[Tensor]:
    """The output and the gradients of a weighted sum of it."""
    weights = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view(output.shape)
    return [output, *torch.autograd.grad((output * weights).sum(), tensors)]
