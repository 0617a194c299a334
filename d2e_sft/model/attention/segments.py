"""Attention over a packed row, segment by segment, by torch's public attention: any device, windows and dropout."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from d2e_sft.model.packing import AttentionPlan


class LayerOptions(NamedTuple):
    """The options of a layer's attention; a `window` counts positions, the query's included."""

    scaling: float
    dropout: float = 0.0
    window: int | None = None


def segment_attention(query: Tensor, key: Tensor, value: Tensor, plan: AttentionPlan, options: LayerOptions) -> Tensor:
    """Call scaled_dot_product_attention once per segment, over the keys of its path; (1, H, Q, D) like the queries."""
    segments = plan.forest.segments
    outputs = []
    for i in plan.own_segments:
        own = segments[i]
        path = [segments[j] for j in plan.forest.path(i)]
        keys = torch.cat([key[:, :, s.start : s.end] for s in path], dim=2)
        values = torch.cat([value[:, :, s.start : s.end] for s in path], dim=2)
        queries = query[:, :, own.start - plan.start : own.end - plan.start]
        outputs.append(_lower_right_attention(queries, keys, values, options))
    return torch.cat(outputs, dim=2)


def _lower_right_attention(query: Tensor, key: Tensor, value: Tensor, options: LayerOptions) -> Tensor:
    """Causal attention in which the last query sees the last key, queries and keys at consecutive positions."""
    length, total, window = query.shape[2], key.shape[2], options.window
    mask: Any = None
    if window is not None or (length < total and query.device.type != "cuda"):
        q_position = torch.arange(total - length, total, device=query.device)
        distance = q_position[:, None] - torch.arange(total, device=query.device)[None, :]
        mask = distance >= 0 if window is None else (distance >= 0) & (distance < window)
    elif length < total and not isinstance(query, FakeTensor):  # without values, the plain causal form has its memory
        from torch.nn.attention.bias import causal_lower_right

        mask = causal_lower_right(length, total)  # the only form that CUDA's fused kernels take without a matrix
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=mask is None,
        scale=options.scaling, dropout_p=options.dropout, enable_gqa=query.shape[1] != key.shape[1],
    )  # fmt: skip
