"""Attention over a packed row one segment at a time, by torch's public attention: any device, windows and dropout."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from d2e_sft.model.packing import AttentionPlan


def segment_attention(
    query: Tensor, key: Tensor, value: Tensor, plan: AttentionPlan, scaling: float, dropout: float, window: int | None
) -> Tensor:
    """One call of scaled_dot_product_attention a segment, over the keys of its path; (1, H, Q, D) as the queries."""
    segments = plan.forest.segments
    outputs = []
    for i in plan.own_segments:
        own = segments[i]
        path = [segments[j] for j in plan.forest.path(i)]
        keys = torch.cat([key[:, :, s.start : s.end] for s in path], dim=2)
        values = torch.cat([value[:, :, s.start : s.end] for s in path], dim=2)
        queries = query[:, :, own.start - plan.start : own.end - plan.start]
        outputs.append(_lower_right_attention(queries, keys, values, scaling, dropout, window))
    return torch.cat(outputs, dim=2)


def _lower_right_attention(
    query: Tensor, key: Tensor, value: Tensor, scaling: float, dropout: float, window: int | None
) -> Tensor:
    """Causal attention whose last query sees the last key, queries and keys at consecutive positions."""
    length, total = query.shape[2], key.shape[2]
    options: dict[str, Any] = {"scale": scaling, "dropout_p": dropout, "enable_gqa": query.shape[1] != key.shape[1]}
    if window is None and length == total:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True, **options)
    if window is None and query.device.type == "cuda":
        from torch.nn.attention.bias import causal_lower_right

        # The one form of this mask that CUDA's fused kernels take without a matrix.
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=causal_lower_right(length, total), **options
        )
    q_position = torch.arange(total - length, total, device=query.device)
    distance = q_position[:, None] - torch.arange(total, device=query.device)[None, :]
    mask = distance >= 0 if window is None else (distance >= 0) & (distance < window)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, **options)
