"""Rows whose tensors keep their shape from step to step, for a compiled step (CUDA).

A step then costs few kernel launches, which is what a small model's step on a GPU consists of. The price: no pair
leaves before the last has finished, and attention reads the whole buffer. Buffers grow in steps of CAPACITY tokens, so
that few shapes are compiled.

Legend: R rows, K key heads, G query heads a key head, C capacity in tokens, D head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from d2e_sft.decoding.cache import left_padded
from d2e_sft.model.attention.registry import KeysAndValues
from d2e_sft.model.forward import hidden_states

CAPACITY = 256


class StaticBlock:
    """Rows of like length, as `RowBlock`, in tensors of fixed shapes and with their next place in a tensor too."""

    def __init__(self, packed: KeysAndValues, indices: Sequence[Sequence[int]], room: int) -> None:
        self.rows = len(indices)
        longest = max(len(row) for row in indices)
        capacity = -(-(longest + room) // CAPACITY) * CAPACITY
        device = next(iter(packed.values()))[0].device
        self.buffers = {
            layer: (left_padded(key, indices, capacity), left_padded(value, indices, capacity))
            for layer, (key, value) in packed.items()
        }
        padding = torch.tensor([longest - len(row) for row in indices], device=device)
        self.positions = torch.arange(capacity, device=device)[None, :] - padding[:, None]  # (R, C); negative: padded
        self.next = torch.tensor([longest], device=device)

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None
    ) -> Tensor:
        """One token's attention for each row, its own key and value kept: (R, K, G, D) → the same shape."""
        keys, values = self.buffers[layer]
        keys.index_copy_(2, self.next, key)
        values.index_copy_(2, self.next, value)
        newest = self.positions.index_select(1, self.next)
        seen = (self.positions >= 0) & (self.positions <= newest)
        if window is not None:
            seen = seen & (newest - self.positions < window)
        mask = seen[:, None, None].expand(-1, 1, query.shape[2], -1)
        return F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=scaling)

    def newest_positions(self) -> Tensor:
        """(R,): of each row's next token."""
        return self.positions.index_select(1, self.next)[:, 0]

    def grow(self) -> None:
        """The token that every layer has attended from now belongs to its row."""
        self.next += 1


def step(model: Any, inputs: dict[str, Any]) -> Tensor:
    """(R, H) hidden states of one new token a row."""
    return hidden_states(model, **inputs)[:, -1]


# Every combination of rows and capacities compiles anew; what is compiled stays for the process.
compiled_step = torch.compile(step, dynamic=False)
