"""One call of a causal language model that projects only its last positions to the vocabulary."""

from __future__ import annotations

import inspect
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn

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
