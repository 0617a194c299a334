"""The first forward over packed prompts, in chunks, with the shared prefix computed once.

Legend: K key heads, T tokens of the packed row, D head width, H hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from d2e_sft.decoding.pairs import Prefix
from d2e_sft.model.attention.registry import KeysAndValues
from d2e_sft.model.forward import hidden_states, packed_inputs
from d2e_sft.model.packing import PackedRow

# Prefill chunk size in tokens; larger values give no speed-up.
PREFILL_TOKENS = 8192


def prefill(model: Any, row: PackedRow, prefix: Prefix, places: Sequence[int]) -> tuple[KeysAndValues, Tensor]:
    """Keys and values of a packed row by layer, (1, K, T, D) each, and the states (places, H) of some of its tokens.

    `prefix` is computed only once, as it keeps its keys and values. `places` of tokens come after it, in any order;
    duplicates are allowed.
    """
    forest = row.forest
    tokens = torch.tensor([row.tokens], device=model.device)
    packed = dict(prefix.packed)
    start = len(prefix.tokens) if packed else 0
    wanted = torch.tensor(places, device=model.device)
    states: list[Tensor] = []
    owners: list[Tensor] = []
    for end in _chunk_ends(row, start, len(prefix.tokens)):
        inputs = packed_inputs(model, forest, tokens, (start, end), remember=packed, recall=packed if start else None)
        part = hidden_states(model, **inputs)[0]
        here = ((wanted >= start) & (wanted < end)).nonzero().squeeze(1)
        states.append(part[wanted[here] - start])
        owners.append(here)
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
