"""Attention over packed rows, registered with transformers under names of its own.

A model whose attention implementation is one of `IMPLEMENTATIONS` attends as usual until its forward is given
`packed=PackedAttention(...)`; then each layer follows that plan. `d2e_by_branch` computes only the (ancestor, branch)
pairs that exist; `d2e_flex` gives the same pattern to torch's compiled flex_attention (CUDA).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from d2e_sft.attention_cpu import branch_flash_attention
from d2e_sft.packing import AttentionPlan, pack

logger = logging.getLogger(__name__)

BY_BRANCH = "d2e_by_branch"
FLEX = "d2e_flex"
IMPLEMENTATIONS = (BY_BRANCH, FLEX)
DENSE = ("sdpa", "eager")  # transformers' own that take the pattern as a 4-D mask, and pay for its masked pairs


KeysAndValues = dict[int, tuple[Tensor, Tensor]]  # by layer


@dataclass
class PackedAttention:
    """What a forward over packed tokens hands to every attention layer.

    Each layer leaves its keys and values in `remember`; a later forward over further tokens of the same forest, given
    them as `recall`, attends to them without gradient.
    """

    plan: AttentionPlan
    remember: KeysAndValues | None = None
    recall: KeysAndValues | None = None


def register() -> None:
    """Make `IMPLEMENTATIONS` known to transformers; safe to call again."""
    from transformers import AttentionInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface

    for name, function in ((BY_BRANCH, _by_branch), (FLEX, _flex)):
        AttentionInterface.register(name, function)
        # Outside packed rows these attend as sdpa does, so they need its masks.
        AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])


def placeholder_mask(device: torch.device) -> Tensor:
    """A 4-D mask of no keys: transformers hands it on as it is instead of guessing sequences from the positions."""
    return torch.zeros((1, 1, 1, 0), dtype=torch.bool, device=device)


def dense_mask(
    plan: AttentionPlan, config: Any, implementation: str, *, dtype: torch.dtype, device: torch.device
) -> Any:
    """A plan as the 4-D mask that transformers' own attention takes: (1, 1, Q, K), or a dict of them by layer type."""
    types = set(getattr(config, "layer_types", None) or [])
    window = getattr(config, "sliding_window", None)

    def mask(width: int | None) -> Tensor:
        seen = plan.mask(window=width)[None, None].to(device)
        if implementation != "eager":
            return seen
        return torch.zeros(seen.shape, dtype=dtype, device=device).masked_fill_(~seen, torch.finfo(dtype).min)

    if len(types) > 1:
        return {kind: mask(window if kind == "sliding_attention" else None) for kind in types}
    return mask(None if types == {"full_attention"} else window)


def flex_agrees(device: torch.device, width: int) -> bool:
    """Whether flex_attention runs on this device and gives what attention segment by segment gives, gradients too."""
    # Different lengths, as training has them: shapes that compile once must serve again.
    generator = torch.Generator().manual_seed(0)
    for rest in (40, 70):
        prefix = list(range(50))
        forest = pack([[[*prefix, *range(100, 100 + rest)], [*prefix, *range(200, 230)]]]).forest
        shape = (1, 2, forest.length, width)
        query, key, value = (torch.randn(shape, generator=generator).to(device).requires_grad_() for _ in range(3))
        results = []
        for attention in (_flex_attention, _segment_attention):
            try:
                output = attention(query, key, value, forest.plan(0, forest.length), width**-0.5, 0.0, None)
                results.append([output, *torch.autograd.grad(output.square().sum(), (query, key, value))])
            except Exception as error:  # a compiler that is missing or fails, a width without a kernel
                logger.warning("flex_attention is not used: %s", str(error).splitlines()[0])
                return False
        # CUDA may multiply in TF32.
        if not all(torch.allclose(a, b, rtol=2e-2, atol=2e-2) for a, b in zip(*results, strict=True)):
            logger.warning("flex_attention is not used: it differs from attention segment by segment on %s", device)
            return False
    return True


def _by_branch(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **options: Any
) -> tuple[Tensor, None]:
    return attend(_branch_attention, module, query, key, value, attention_mask, **options)


def _flex(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **options: Any
) -> tuple[Tensor, None]:
    return attend(_flex_attention, module, query, key, value, attention_mask, **options)


# Which pairs of tokens attend changes with every batch: compiled, it would compile anew for each.
@torch.compiler.disable
def attend(
    attention: Any,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    *,
    packed: PackedAttention | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """An attention function in transformers' form: (1, H, Q, D) queries → (1, Q, H, D) outputs."""
    if packed is None:
        if isinstance(attention_mask, Tensor) and attention_mask.shape[-1] == 0:
            raise NotImplementedError(f"{type(module).__name__} does not hand its arguments on to attention")
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        output, _ = sdpa_attention_forward(
            module, query, key, value, attention_mask,
            scaling=scaling, dropout=dropout, sliding_window=sliding_window, **options,
        )  # fmt: skip
        return output, None
    for name in ("softcap", "s_aux", "position_bias"):
        if options.get(name) is not None:
            raise NotImplementedError(f"{type(module).__name__} needs {name!r}, which packed attention lacks")
    if packed.recall is not None:
        earlier_key, earlier_value = packed.recall[_layer(module)]
        key, value = torch.cat([earlier_key, key], dim=2), torch.cat([earlier_value, value], dim=2)
    if packed.remember is not None:
        packed.remember[_layer(module)] = (key.detach(), value.detach())
    if scaling is None:
        scaling = query.shape[-1] ** -0.5
    plan = packed.plan
    window = sliding_window if sliding_window is not None and plan.longest_distance() >= sliding_window else None
    output = attention(query, key, value, plan, scaling, dropout, window)
    return output.transpose(1, 2), None


def _layer(module: Any) -> int:
    index: int | None = getattr(module, "layer_idx", None)
    return id(module) if index is None else index


def _branch_attention(
    query: Tensor, key: Tensor, value: Tensor, plan: AttentionPlan, scaling: float, dropout: float, window: int | None
) -> Tensor:
    if query.device.type == "cpu" and window is None and not dropout and query.shape[-1] == value.shape[-1]:
        if torch.is_autocast_enabled("cpu"):  # which knows torch's own attention, and not this one
            query, key, value = (tensor.to(torch.get_autocast_dtype("cpu")) for tensor in (query, key, value))
        return branch_flash_attention(query, key, value, plan.blocks, scaling)
    return _segment_attention(query, key, value, plan, scaling, dropout, window)


def _segment_attention(
    query: Tensor, key: Tensor, value: Tensor, plan: AttentionPlan, scaling: float, dropout: float, window: int | None
) -> Tensor:
    """One call of scaled_dot_product_attention a segment, over the keys of its path; any device."""
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


def _flex_attention(
    query: Tensor, key: Tensor, value: Tensor, plan: AttentionPlan, scaling: float, dropout: float, window: int | None
) -> Tensor:
    if dropout:
        return _segment_attention(query, key, value, plan, scaling, dropout, window)
    output: Tensor = _flex_kernel(query.device.type)(
        query, key, value,
        block_mask=_block_mask(plan, query.device, window), scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )  # fmt: skip
    return output


@cache
def _flex_kernel(device: str) -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    # Uncompiled it builds the whole score matrix: right on CPU, where only comparisons use it.
    return torch.compile(flex_attention, dynamic=True) if device == "cuda" else flex_attention


def _block_mask(plan: AttentionPlan, device: torch.device, window: int | None) -> Any:
    """flex_attention's BlockMask of a plan, kept with the plan for the other layers."""
    from torch.nn.attention.flex_attention import create_block_mask

    kept = plan.block_masks
    if window not in kept:
        segment, position = plan.forest.segment_ids.to(device), plan.forest.position_ids.to(device)
        above, start = plan.forest.is_above.to(device), plan.start

        def seen(batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
            distance = position[q + start] - position[k]
            visible = above[segment[q + start], segment[k]] & (distance >= 0)
            return visible if window is None else visible & (distance < window)

        kept[window] = create_block_mask(seen, None, None, plan.length, plan.end, device=device)
    return kept[window]
