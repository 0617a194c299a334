"""Attention over a packed row by torch's flex_attention, which compiles a kernel for a row's pattern (CUDA)."""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

import torch
from torch import Tensor

from d2e_sft.model.attention.segments import LayerOptions, segment_attention
from d2e_sft.model.packing import AttentionPlan, pack

logger = logging.getLogger(__name__)
# The pattern is materialised once per batch before it is packed into blocks: 2²⁶ pairs take half a gigabyte.
_MOST_PAIRS = 2**26
_MOST_KERNELS = 64


def flex_attention(query: Tensor, key: Tensor, value: Tensor, plan: AttentionPlan, options: LayerOptions) -> Tensor:
    """Compute the same as `segment_attention`, which takes over for dropout and very long rows."""
    if options.dropout or plan.length * plan.end > _MOST_PAIRS:
        return segment_attention(query, key, value, plan, options)
    output: Tensor = _kernel(query.device.type)(
        query, key, value,
        block_mask=_block_mask(plan, query.device, options.window), scale=options.scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )  # fmt: skip
    return output


def flex_agrees(device: torch.device, *, heads: int, key_heads: int, width: int) -> bool:
    """Whether flex_attention works on this device and agrees with attention by segments, gradients included."""
    # Different lengths and starts, as in training: kernels must work for shapes other than the first.
    generator = torch.Generator().manual_seed(0)
    for rest in (40, 70):
        prefix = list(range(50))
        sequences = [[*prefix, *range(100, 100 + rest)], [*prefix, *range(200, 230)]]
        forest = pack([sequences], leading=1).forest
        for start, end in ((0, forest.length), (0, forest.lead), (forest.lead, forest.length)):
            shapes = ((1, heads, end - start, width), *2 * ((1, key_heads, end, width),))
            query, key, value = (torch.randn(s, generator=generator).to(device).requires_grad_() for s in shapes)
            results = []
            for attention in (flex_attention, segment_attention):
                try:
                    output = attention(query, key, value, forest.plan(start, end), LayerOptions(width**-0.5))
                    results.append([output, *torch.autograd.grad(output.square().sum(), (query, key, value))])
                except Exception as error:  # no working compiler, or a width without a kernel
                    logger.warning("flex_attention is not used: %s", str(error).splitlines()[0])
                    return False
            # CUDA may multiply in TF32.
            if not all(torch.allclose(a, b, rtol=2e-2, atol=2e-2) for a, b in zip(*results, strict=True)):
                logger.warning("flex_attention is not used: it differs from attention by segments on %s", device)
                return False
    return True


@cache
def _kernel(device: str) -> Any:
    from torch.nn.attention.flex_attention import flex_attention as kernel

    if device != "cuda":
        return kernel  # uncompiled it builds the whole score matrix, which is fine for comparisons on the CPU
    # Kernels differ with gradients on or off, mixed precision, and heads. After 8 of them, torch's limit, a call
    # would silently go on uncompiled, several times slower (seen on an H100).
    from torch._dynamo import config

    config.recompile_limit = max(config.recompile_limit, _MOST_KERNELS)
    return torch.compile(kernel, dynamic=True)


def _block_mask(plan: AttentionPlan, device: torch.device, window: int | None) -> Any:
    """Return flex_attention's BlockMask of a plan, cached in the plan for the other layers."""
    from torch.nn.attention.flex_attention import create_block_mask

    kept = plan.block_masks
    if window not in kept:
        forest = plan.forest
        k_segment, k_position = forest.segment_ids.to(device), forest.position_ids.to(device)
        # Tensors instead of an offset: a number in the pattern would compile a kernel for each of its values.
        q_segment, q_position = k_segment[plan.start : plan.end], k_position[plan.start : plan.end]
        above = forest.is_above.to(device)

        def seen(batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
            distance = q_position[q] - k_position[k]
            visible = above[q_segment[q], k_segment[k]] & (distance >= 0)
            return visible if window is None else visible & (distance < window)

        kept[window] = create_block_mask(seen, None, None, plan.length, plan.end, device=device)
    return kept[window]
