"""Attention over packed rows, registered with transformers under names of its own.

A model whose attention implementation is one of `IMPLEMENTATIONS` attends as usual until its forward is given
`packed=PackedAttention(...)`; then each layer follows that plan. Given `row_cache=RowCache(...)` instead, each layer
attends one new token a row (decoding). `d2e_by_branch` computes only the (ancestor, branch)
pairs that exist; `d2e_flex` gives the same pattern to torch's compiled flex_attention (CUDA).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from d2e_sft.model.attention.cpu import branch_flash_attention
from d2e_sft.model.attention.flex import flex_attention
from d2e_sft.model.attention.segments import segment_attention
from d2e_sft.model.packing import AttentionPlan

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

    for name, function in ((BY_BRANCH, _by_branch), (FLEX, partial(attend, flex_attention))):
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


def _by_branch(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    *,
    row_cache: Any = None,
    **options: Any,
) -> tuple[Tensor, None]:
    if row_cache is not None:
        scaling, window = _supported(module, query, options)
        return row_cache.attend(_layer(module), query, key, value, scaling, window).transpose(1, 2), None
    return attend(branch_attention, module, query, key, value, attention_mask, **options)


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
    **options: Any,
) -> tuple[Tensor, None]:
    """An attention function in transformers' form: (1, H, Q, D) queries → (1, Q, H, D) outputs."""
    if packed is None:
        if isinstance(attention_mask, Tensor) and attention_mask.shape[-1] == 0:
            raise NotImplementedError(f"{type(module).__name__} does not hand its arguments on to attention")
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        output, _ = sdpa_attention_forward(
            module, query, key, value, attention_mask,
            scaling=scaling, dropout=dropout, **options,
        )  # fmt: skip
        return output, None
    scaling, window = _supported(module, query, {"scaling": scaling, **options})
    if torch.is_autocast_enabled(query.device.type):  # which casts for torch's own attention, and not for these
        dtype = torch.get_autocast_dtype(query.device.type)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    if packed.recall is not None:
        earlier_key, earlier_value = packed.recall[_layer(module)]
        key, value = torch.cat([earlier_key, key], dim=2), torch.cat([earlier_value, value], dim=2)
    if packed.remember is not None:
        packed.remember[_layer(module)] = (key.detach(), value.detach())
    plan = packed.plan
    if window is not None and plan.longest_distance() < window:
        window = None
    output = attention(query, key, value, plan, scaling, dropout, window)
    return output.transpose(1, 2), None


def _supported(module: Any, query: Tensor, options: dict[str, Any]) -> tuple[float, int | None]:
    """A layer's scaling and sliding window; refuses what it asks for beyond them."""
    for name in ("softcap", "s_aux", "position_bias"):
        if options.get(name) is not None:
            raise NotImplementedError(f"{type(module).__name__} needs {name!r}, which packed attention lacks")
    scaling = options.get("scaling") or query.shape[-1] ** -0.5
    if "sliding_window" in options:
        return scaling, options["sliding_window"]
    # A layer must pass its window on itself: some put it into the mask alone.
    config = getattr(module, "config", None)
    window: int | None = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if window is not None and (kinds is None or "sliding_attention" in kinds):
        raise NotImplementedError(f"{type(module).__name__} does not hand its sliding window on to attention")
    return scaling, None


def _layer(module: Any) -> int:
    index: int | None = getattr(module, "layer_idx", None)
    return id(module) if index is None else index


def branch_attention(
    query: Tensor, key: Tensor, value: Tensor, plan: AttentionPlan, scaling: float, dropout: float, window: int | None
) -> Tensor:
    if query.device.type == "cpu" and window is None and not dropout and query.shape[-1] == value.shape[-1]:
        return branch_flash_attention(query, key, value, plan.blocks, scaling)
    return segment_attention(query, key, value, plan, scaling, dropout, window)
