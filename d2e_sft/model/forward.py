"""Calls of a language model in parts: its head, its hidden states, what a packed row needs, its last logits alone."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from d2e_sft.model.attention.registry import DENSE, KeysAndValues, PackedAttention, dense_mask, placeholder_mask
from d2e_sft.model.packing import TokenForest

# Unwrapping walks the whole model, and decoding asks for every token.
_TAKES_LOGITS_TO_KEEP: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


def last_logits(model: nn.Module, keep: int, **inputs: Any) -> tuple[Tensor, Any]:
    """Logits of the last `keep` positions, (rows, keep, V), and the model's whole output.

    The call goes through the (possibly wrapped) model itself, so that the hooks of DDP, FSDP and DeepSpeed fire.
    """
    if model not in _TAKES_LOGITS_TO_KEEP:
        _TAKES_LOGITS_TO_KEEP[model] = "logits_to_keep" in inspect.signature(bare_model(model).forward).parameters
    if _TAKES_LOGITS_TO_KEEP[model]:
        inputs["logits_to_keep"] = keep
    output = model(**inputs)
    logits: Tensor = output.logits
    # A model without the argument projects every position; slicing gives the same numbers for more memory.
    return logits[:, -keep:], output


def head_of(model: Any, head: nn.Module | None = None) -> tuple[Callable[[Tensor], Tensor], bool]:
    """From hidden states to logits, as the model does it, and whether that map is linear.

    Linear maps let hidden states be subtracted in place of logits. Covered beside the head itself: final soft-capping
    (Gemma 2), `logit_scale` (Cohere) and `logits_scaling` (Granite).

    Args:
        head: takes the place of the model's own output embeddings.
    """
    head = model.get_output_embeddings() if head is None else head
    config = model.config.get_text_config()
    cap = getattr(config, "final_logit_softcapping", None)
    scale = getattr(config, "logit_scale", None) or 1 / (getattr(config, "logits_scaling", None) or 1)

    def project(hidden: Tensor) -> Tensor:
        logits: Tensor = head(hidden)
        if scale != 1:
            logits = logits * scale
        return logits if cap is None else torch.tanh(logits / cap) * cap

    return project, cap is None and getattr(head, "bias", None) is None


def hidden_states(model: Any, **inputs: Any) -> Tensor:
    """The last hidden states of a causal language model, (rows, L, H), before its head."""
    backbone = getattr(model, model.base_model_prefix)
    output: Tensor = backbone(**inputs, use_cache=False)[0]
    return output


def packed_inputs(
    model: Any,
    forest: TokenForest,
    input_ids: Tensor,
    start: int,
    end: int,
    *,
    remember: KeysAndValues | None = None,
    recall: KeysAndValues | None = None,
) -> dict[str, Any]:
    """What a model's forward needs for the tokens [start, end) of a packed row."""
    device, plan = input_ids.device, forest.plan(start, end)
    inputs = {
        "input_ids": input_ids[:, start:end],
        "position_ids": forest.position_ids[None, start:end].to(device),
    }
    config = model.config.get_text_config()
    implementation = config._attn_implementation
    if implementation in DENSE:
        mask = dense_mask(plan, config, implementation, dtype=model.dtype, device=device)
        return {**inputs, "attention_mask": mask}
    packed = PackedAttention(plan, remember=remember, recall=recall)
    return {**inputs, "attention_mask": placeholder_mask(device), "packed": packed}


def bare_model(model: nn.Module) -> Any:
    """The transformers model inside its distributed wrapper and its adapter."""
    bare = unwrapped(model)
    get_base_model = getattr(bare, "get_base_model", None)  # peft
    return get_base_model() if callable(get_base_model) else bare


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside its distributed wrapper (DDP, FSDP, DeepSpeed); itself if it has none."""
    from transformers import PreTrainedModel

    if isinstance(model, PreTrainedModel):  # accelerate would import DeepSpeed to find that out
        return model
    from accelerate.utils import extract_model_from_parallel

    bare: nn.Module = extract_model_from_parallel(model)
    return bare
