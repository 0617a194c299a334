"""Attention over packed rows, registered with transformers under its own names.

With `packed=PackedAttention(...)` in a model's forward, each layer follows that plan; with `row_cache=RowCache(...)`,
each attends one new token per row (decoding). `d2e_by_branch` computes only the (ancestor, branch) pairs that exist.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from d2e_sft.model.attention.cuda import cuda_attention, cuda_kernel_takes
from d2e_sft.model.attention.segments import LayerOptions, branch_flash_attention, segment_attention
from d2e_sft.model.packing import AttentionPlan

BY_BRANCH = "d2e_by_branch"
DENSE = ("sdpa", "eager")  # transformers' own, which take the pattern as a 4-D mask and compute masked pairs too

KeysAndValues = dict[int, tuple[Tensor, Tensor]]  # by layer


@dataclass
class PackedAttention:
    """The argument of every attention layer in a forward over packed tokens.

    Layers store keys and values in `remember`; later tokens attend to them as `recall`, without gradient.
    """

    plan: AttentionPlan
    remember: KeysAndValues | None = None
    recall: KeysAndValues | None = None


def register(*, beside_compiled: bool = False) -> None:
    """Register `BY_BRANCH` with transformers; safe to call again.

    With `beside_compiled` torch.compile leaves attention over packed rows as it is in compiled layers: its pattern
    changes with every batch, so it would be compiled again for each. Only then is the compiler imported.
    """
    from transformers import AttentionInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface

    if not beside_compiled and BY_BRANCH in AttentionInterface():
        return
    attending = torch.compiler.disable(attend) if beside_compiled else attend
    AttentionInterface.register(BY_BRANCH, partial(_by_branch, attending))
    # Outside packed rows it attends like sdpa, so it needs its masks.
    AttentionMaskInterface.register(BY_BRANCH, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])


def placeholder_mask(device: torch.device) -> Tensor:
    """Return a 4-D mask without keys, which keeps transformers from guessing sequences from the positions."""
    return torch.zeros((1, 1, 1, 0), dtype=torch.bool, device=device)


def dense_mask(
    plan: AttentionPlan, config: Any, implementation: str, *, dtype: torch.dtype, device: torch.device
) -> Any:
    """Return a plan as the 4-D mask of transformers' own attention: (1, 1, Q, K), or a dict of them by layer type."""
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
    attending: Callable[..., tuple[Tensor, None]],
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
        layer = _layer_options(module, query, options)
        return row_cache.attend(_layer(module), query, key, value, layer.scaling, layer.window).transpose(1, 2), None
    return attending(module, query, key, value, attention_mask, **options)


def attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **options: Any
) -> tuple[Tensor, None]:
    """An attention function in transformers' form: (1, H, Q, D) queries → (1, Q, H, D) outputs."""
    packed: PackedAttention | None = options.pop("packed", None)
    if packed is None:
        if isinstance(attention_mask, Tensor) and attention_mask.shape[-1] == 0:
            raise NotImplementedError(f"{type(module).__name__} does not pass its arguments to attention")
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)[0], None
    layer = _layer_options(module, query, options)
    if torch.is_autocast_enabled(query.device.type):  # casts only for torch's own attention
        dtype = torch.get_autocast_dtype(query.device.type)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    if packed.recall is not None:
        earlier_key, earlier_value = packed.recall[_layer(module)]
        key, value = torch.cat([earlier_key, key], dim=2), torch.cat([earlier_value, value], dim=2)
    if packed.remember is not None:
        packed.remember[_layer(module)] = (key.detach(), value.detach())
    plan = packed.plan
    if layer.window is not None and plan.longest_distance() < layer.window:
        layer = layer._replace(window=None)
    return branch_attention(query, key, value, plan, layer).transpose(1, 2), None


def _layer_options(module: Any, query: Tensor, options: dict[str, Any]) -> LayerOptions:
    """Raise NotImplementedError for options that packed attention lacks."""
    for name in ("softcap", "s_aux", "position_bias"):
        if options.get(name) is not None:
            raise NotImplementedError(f"{type(module).__name__} needs {name!r}, which packed attention lacks")
    window = options.get("sliding_window")
    if "sliding_window" not in options:
        # Some layers put their window only into the mask.
        config = getattr(module, "config", None)
        kinds = getattr(config, "layer_types", None)
        if getattr(config, "sliding_window", None) and (kinds is None or "sliding_attention" in kinds):
            raise NotImplementedError(f"{type(module).__name__} does not pass its sliding window to attention")
    return LayerOptions(options.get("scaling") or query.shape[-1] ** -0.5, options.get("dropout") or 0.0, window)


def _layer(module: Any) -> int:
    index: int | None = getattr(module, "layer_idx", None)
    return id(module) if index is None else index


def branch_attention(query: Tensor, key: Tensor, value: Tensor, plan: AttentionPlan, options: LayerOptions) -> Tensor:
    """Attend by the flash kernel of the CPU or of CUDA if it supports the options, else by segment."""
    if cuda_kernel_takes(query, value, options):
        return cuda_attention(query, key, value, plan, options)
    plain = options.window is None and not options.dropout and query.shape[-1] == value.shape[-1]
    if query.device.type == "cpu" and plain:
        return branch_flash_attention(query, key, value, plan.blocks, options.scaling)
    return segment_attention(query, key, value, plan, options)
