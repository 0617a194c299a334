"""Keys and values of rows that grow by one token per step.

transformers' own cache copies everything for each new token and repeats each key head for its query heads. Here the
rows of a view that began together have buffers that are allocated once, and a prefix of several rows is stored once.

Legend: R rows, K key heads, G query heads a key head, D head width, H hidden size. In tokens: C is the capacity, P the
prefix, T a packed row.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from d2e_sft.decoding.pairs import Tokens
from d2e_sft.model.attention.registry import KeysAndValues
from d2e_sft.model.forward import hidden_states, packed_inputs
from d2e_sft.model.packing import PackedRow

PREFILL_TOKENS = 8192  # prefill chunk size; larger values give no speed-up
_CAPACITY = 256  # buffers of compiled rows are multiples of this many tokens
_flash_on_cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


class SharedPrefix:
    """Keys and values (1, K, P, D) by layer of a packed row's first `length` tokens, which rows share."""

    def __init__(self, packed: KeysAndValues, length: int) -> None:
        self.length = length
        # Clones, as a slice would keep the whole packed row alive.
        self.of_layer = {
            layer: (k[:, :, :length].clone(), v[:, :, :length].clone()) for layer, (k, v) in packed.items()
        }


class RowBlock:
    """Rows of similar length, after a shared prefix, which is not copied.

    Args:
        packed: Keys and values (1, K, T, D) of a packed row, by layer.
        indices: Positions of each row's other tokens in the packed row.
        room: Tokens that each row can grow by.
    """

    def __init__(
        self, packed: KeysAndValues, prefix: SharedPrefix, indices: Sequence[Sequence[int]], room: int
    ) -> None:
        self.rows = len(indices)
        self.prefix = prefix
        lengths = [len(row) for row in indices]
        self.used = max(lengths)
        device = next(iter(packed.values()))[0].device
        padding = torch.tensor([self.used - length for length in lengths], device=device)
        slot = torch.arange(self.used + room, device=device)
        self.positions = prefix.length + slot[None, :] - padding[:, None]  # (R, C); padding lies below the prefix
        self.is_padded = bool(padding.any())
        self.buffers = _buffers(packed, indices, self.used + room)
        self.masks: dict[tuple[torch.dtype, int | None], Tensor] = {}

    def newest_positions(self) -> Tensor:
        """Position of each row's next token, (R,)."""
        return self.positions[:, self.used]

    def grow(self) -> None:
        """Add the token that every layer has just attended from to its row."""
        self.used += 1
        self.masks.clear()

    def keep(self, order: Sequence[int]) -> None:
        """Keep these rows, in this order; `filled_holes` gives an order that moves few."""
        moves = [(i, row) for i, row in enumerate(order) if i != row]
        for buffers in self.buffers.values():
            for buffer in buffers:
                for i, row in moves:
                    buffer[i, :, : self.used] = buffer[row, :, : self.used]
        self.positions = self.positions[list(order)]
        self.rows = len(order)
        self.masks.clear()

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Store a token's (R, K, 1, D) key and value; returns all keys and values of the rows, (R, K, L, D)."""
        keys, values = self.buffers[layer]
        keys[: self.rows, :, self.used] = key[:, :, 0]
        values[: self.rows, :, self.used] = value[:, :, 0]
        return keys[: self.rows, :, : self.used + 1], values[: self.rows, :, : self.used + 1]

    def attend_own(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float
    ) -> tuple[Tensor, Tensor]:
        """Attention to a row's own tokens, (R, K, G, D), and its log-sum-exp (R, K, G); CPU only."""
        keys, values = self.append(layer, key, value)
        mask = self._mask(query.dtype, None)[:, None, None] if self.is_padded else None
        both: tuple[Tensor, Tensor] = _flash_on_cpu(query, keys, values, 0.0, False, attn_mask=mask, scale=scaling)
        return both

    def attend_all(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None
    ) -> Tensor:
        """Attention to the prefix and a row's own tokens together, (R, K, G, D); any device, with windows."""
        keys, values = self.append(layer, key, value)
        mask = self._mask(query.dtype, window)
        if self.prefix.length:
            prefix_keys, prefix_values = self.prefix.of_layer[layer]
            keys = torch.cat([prefix_keys.expand(self.rows, -1, -1, -1), keys], dim=2)
            values = torch.cat([prefix_values.expand(self.rows, -1, -1, -1), values], dim=2)
            positions = torch.arange(self.prefix.length, device=mask.device).expand(self.rows, -1)
            mask = torch.cat([_as_bias(self._in_window(positions, window), query.dtype), mask], dim=1)
        every_head = mask[:, None, None].expand(-1, 1, query.shape[2], -1)
        return F.scaled_dot_product_attention(query, keys, values, attn_mask=every_head, scale=scaling)

    def _mask(self, dtype: torch.dtype, window: int | None) -> Tensor:
        """Bias of a row's own tokens, (R, own tokens); made once per step, for all layers."""
        if (dtype, window) not in self.masks:
            positions = self.positions[:, : self.used + 1]
            seen = (positions >= self.prefix.length) & self._in_window(positions, window)
            self.masks[dtype, window] = _as_bias(seen, dtype)
        return self.masks[dtype, window]

    def _in_window(self, positions: Tensor, window: int | None) -> Tensor:
        newest = self.positions[:, self.used, None]
        return newest - positions < (torch.iinfo(torch.int64).max if window is None else window)


def filled_holes(running: Sequence[bool]) -> list[int]:
    """An order of the running rows that moves few of them: the last ones fill the holes."""
    left = [i for i, runs in enumerate(running) if runs]
    movers = (i for i in left if i >= len(left))
    return [i if running[i] else next(movers) for i in range(len(left))]


def _as_bias(seen: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, -torch.inf)


def _buffers(
    packed: KeysAndValues, indices: Sequence[Sequence[int]], capacity: int
) -> dict[int, tuple[Tensor, Tensor]]:
    """By layer, buffers (R, K, C, D) with each row's tokens of a packed row (1, K, T, D), aligned to the right."""
    longest = max(len(row) for row in indices)
    places = torch.tensor([[0] * (longest - len(row)) + list(row) for row in indices], dtype=torch.long).flatten()

    def left_padded(tensor: Tensor) -> Tensor:
        buffer = tensor.new_zeros(len(indices), tensor.shape[1], capacity, tensor.shape[3])
        rows = tensor[0].index_select(1, places.to(tensor.device)).unflatten(1, (len(indices), longest))
        buffer[:, :, :longest] = rows.transpose(0, 1)
        return buffer

    return {layer: (left_padded(key), left_padded(value)) for layer, (key, value) in packed.items()}


class StaticBlock:
    """Rows of similar length whose tensors keep their shape from step to step, for a compiled step (CUDA).

    A step then takes few kernel launches, which dominate a small model's step on a GPU. The price: no pair leaves
    before the last has finished, attention reads the whole buffer, and no prefix is shared. Buffers are multiples of
    `_CAPACITY` tokens, so that few shapes are compiled; each row's next place is a tensor, too.
    """

    def __init__(self, packed: KeysAndValues, indices: Sequence[Sequence[int]], room: int) -> None:
        self.rows = len(indices)
        longest = max(len(row) for row in indices)
        capacity = -(-(longest + room) // _CAPACITY) * _CAPACITY
        device = next(iter(packed.values()))[0].device
        self.buffers = _buffers(packed, indices, capacity)
        padding = torch.tensor([longest - len(row) for row in indices], device=device)
        self.positions = torch.arange(capacity, device=device)[None, :] - padding[:, None]  # (R, C); negative: padded
        self.next = torch.tensor([longest], device=device)

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None
    ) -> Tensor:
        """Store one token's key and value per row, and attend from it: (R, K, G, D) → the same shape."""
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
        """Position of each row's next token, (R,)."""
        return self.positions.index_select(1, self.next)[:, 0]

    def grow(self) -> None:
        """Add the token that every layer has just attended from to its row."""
        self.next += 1


class RowCache:
    """The cache that attention gets: `RowBlock`s, each after its prefix, or `StaticBlock`s."""

    def __init__(self, blocks: Sequence[Any]) -> None:
        self.blocks = list(blocks)

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None
    ) -> Tensor:
        """(R, K·G, 1, D) queries of one token a row, with its (R, K, 1, D) key and value → (R, K·G, 1, D)."""
        # The query heads of a key head are treated as queries of one token, so that no key is repeated for them.
        grouped = query.reshape(len(query), key.shape[1], -1, query.shape[3])
        sizes = [block.rows for block in self.blocks]
        parts = zip(self.blocks, *(tensor.split(sizes) for tensor in (grouped, key, value)), strict=True)
        if isinstance(self.blocks[0], StaticBlock):
            output = torch.cat([block.attend(layer, q, k, v, scaling, window) for block, q, k, v in parts])
        elif _can_cascade(query, value, window):
            partials = [block.attend_own(layer, q, k, v, scaling) for block, q, k, v in parts]
            output = self._merged(layer, grouped, partials, scaling)
        else:
            output = torch.cat([block.attend_all(layer, q, k, v, scaling, window) for block, q, k, v in parts])
        return output.reshape(len(query), -1, 1, value.shape[3])

    def _merged(self, layer: int, query: Tensor, partials: Sequence[tuple[Tensor, Tensor]], scaling: float) -> Tensor:
        """Merge attention to own tokens and to prefixes by their log-sum-exp; a prefix is read once for its blocks."""
        outputs: list[Tensor] = []
        for prefix, members in groupby(range(len(partials)), key=lambda place: self.blocks[place].prefix):
            output, normaliser = (
                torch.cat(parts) for parts in zip(*(partials[place] for place in members), strict=True)
            )
            queries, query = query[: len(output)], query[len(output) :]
            if prefix.length:
                output = _with_prefix(output, normaliser, queries, prefix.of_layer[layer], scaling)
            outputs.append(output)
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def positions(self) -> Tensor:
        """Position of each row's next token, (R, 1)."""
        return torch.cat([block.newest_positions() for block in self.blocks])[:, None]

    def grow(self) -> None:
        """Call after a forward; see `RowBlock.grow`."""
        for block in self.blocks:
            block.grow()


def _with_prefix(
    output: Tensor, normaliser: Tensor, query: Tensor, prefix: tuple[Tensor, Tensor], scaling: float
) -> Tensor:
    """Attention (R, K, G, D) to own tokens and to the keys and values of their prefix, (1, K, P, D) each."""
    rows, heads, group, width = query.shape
    together = query.transpose(0, 1).reshape(1, heads, rows * group, width)
    shared, shared_normaliser = _flash_on_cpu(together, *prefix, 0.0, False, scale=scaling)
    shared = shared.view(heads, rows, group, width).transpose(0, 1)
    share = torch.sigmoid(shared_normaliser.view(heads, rows, group).transpose(0, 1) - normaliser)
    return torch.lerp(output, shared, share[..., None].to(output.dtype))


def _can_cascade(query: Tensor, value: Tensor, window: int | None) -> bool:
    return query.device.type == "cpu" and window is None and query.shape[3] == value.shape[3]


@dataclass
class Prefix:
    """Tokens that all prompts of several batches begin with; their keys and values once computed.

    `shared` are those that rows read at each step.
    """

    tokens: Tokens
    packed: KeysAndValues = field(default_factory=dict)
    shared: SharedPrefix | None = None


def prefill(model: Any, row: PackedRow, prefix: Prefix, places: Sequence[int]) -> tuple[KeysAndValues, Tensor]:
    """Keys and values of a packed row by layer, (1, K, T, D) each, and the states (places, H) of some of its tokens.

    `prefix` is computed only once, as it keeps its keys and values. `places` of tokens come after it, in any order;
    duplicates are allowed.
    """
    forest = row.forest
    tokens = torch.tensor([row.tokens], device=model.device)
    packed = dict(prefix.packed)
    start = len(prefix.tokens) if packed else 0
    positions = torch.tensor(places, device=model.device)
    states: list[Tensor] = []
    owners: list[Tensor] = []
    for end in _chunk_ends(row, start, len(prefix.tokens)):
        inputs = packed_inputs(model, forest, tokens, (start, end), remember=packed, recall=packed if start else None)
        part = hidden_states(model, **inputs)[0]
        in_chunk = ((positions >= start) & (positions < end)).nonzero().squeeze(1)
        states.append(part[positions[in_chunk] - start])
        owners.append(in_chunk)
        if end == len(prefix.tokens):
            prefix.packed = dict(packed)
        start = end
    return packed, torch.cat(states)[torch.cat(owners).argsort()]


def _chunk_ends(row: PackedRow, start: int, prefix: int) -> list[int]:
    """Ends of the prefill chunks: whole segments of about PREFILL_TOKENS, with the prefix as a chunk of its own."""
    ends = []
    for segment in row.forest.segments:
        if segment.end <= start:
            continue
        if segment.end == prefix or segment.end - start >= PREFILL_TOKENS:
            ends.append(segment.end)
            start = segment.end
    return ends if ends and ends[-1] == row.forest.length else [*ends, row.forest.length]
