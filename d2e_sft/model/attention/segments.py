"""Attention over a packed row in parts: segment by segment on any device, or block by block on a CPU.

Segments are attended by torch's public attention, with windows and dropout. Blocks are for torch's flash kernel for
CPU, in float32 at least. Partial results are merged by their log-sum-exp. Given the merged output and log-sum-exp, the
backward kernel returns each block's exact share of the gradients. In bfloat16 its backward takes six times as long
(torch 2.13, AMX).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.function import once_differentiable

from d2e_sft.model.packing import AttentionBlock, AttentionPlan

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


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
        segment = segments[i]
        path = [segments[j] for j in plan.forest.path(i)]
        keys = torch.cat([key[:, :, s.start : s.end] for s in path], dim=2)
        values = torch.cat([value[:, :, s.start : s.end] for s in path], dim=2)
        queries = query[:, :, segment.start - plan.start : segment.end - plan.start]
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


def branch_flash_attention(
    query: Tensor, key: Tensor, value: Tensor, blocks: Sequence[AttentionBlock], scale: float
) -> Tensor:
    """Return softmax(query · keyᵀ · scale) · value over the pairs in the blocks, (1, H, Q, D) stored as (1, Q, H, D).

    `query` is (1, H, Q, D); `key` and `value` are (1, H or a divisor of H, K, D). The causal blocks come first and
    contain each query once.
    """
    output: Tensor = _BranchFlash.apply(query, key, value, blocks, scale)
    return output


class _BranchFlash(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, blocks: Sequence[AttentionBlock], scale: float
    ) -> Tensor:
        repeats = query.shape[1] // key.shape[1]
        precise = query.dtype if query.dtype == torch.float64 else torch.float32
        queries = query.to(precise)
        keys, values = _repeat_heads(key, repeats).to(precise), _repeat_heads(value, repeats).to(precise)
        _, heads, length, width = query.shape
        output = query.new_empty((1, length, heads, width), dtype=precise).transpose(1, 2)
        normaliser = query.new_empty((1, heads, length), dtype=precise)
        for block in blocks:
            q = slice(block.q_start, block.q_end)
            k = slice(block.k_start, block.k_end)
            part, part_normaliser = _forward(
                queries[:, :, q], keys[:, :, k], values[:, :, k], 0.0, block.causal, scale=scale
            )
            if block.causal:
                output[:, :, q] = part
                normaliser[:, :, q] = part_normaliser
                continue
            merged = torch.logaddexp(normaliser[:, :, q], part_normaliser)
            output[:, :, q] *= (normaliser[:, :, q] - merged).exp_()[..., None]
            output[:, :, q] += part * (part_normaliser - merged).exp_()[..., None]
            normaliser[:, :, q] = merged
        output = output.to(query.dtype)
        ctx.save_for_backward(query, key, value, output, normaliser)
        ctx.blocks, ctx.scale, ctx.repeats = blocks, scale, repeats
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        query, key, value, output, normaliser = ctx.saved_tensors
        precise = normaliser.dtype
        gradient, queries, outputs = gradient.to(precise), query.to(precise), output.to(precise)
        keys, values = _repeat_heads(key, ctx.repeats).to(precise), _repeat_heads(value, ctx.repeats).to(precise)
        to_query, to_key, to_value = torch.zeros_like(queries), torch.zeros_like(keys), torch.zeros_like(values)
        for block in ctx.blocks:
            q = slice(block.q_start, block.q_end)
            k = slice(block.k_start, block.k_end)
            dq, dk, dv = _backward(
                gradient[:, :, q], queries[:, :, q], keys[:, :, k], values[:, :, k],
                outputs[:, :, q], normaliser[:, :, q], 0.0, block.causal, scale=ctx.scale,
            )  # fmt: skip
            to_query[:, :, q] += dq
            to_key[:, :, k] += dk
            to_value[:, :, k] += dv
        if ctx.repeats > 1:
            to_key, to_value = (grad.unflatten(1, (-1, ctx.repeats)).sum(dim=2) for grad in (to_key, to_value))
        return to_query.to(query.dtype), to_key.to(key.dtype), to_value.to(value.dtype), None, None


def _repeat_heads(tensor: Tensor, repeats: int) -> Tensor:
    return tensor if repeats == 1 else tensor.repeat_interleave(repeats, dim=1)
