"""One micro-batch as the trainer, the dry run and the speed tests run it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from d2e_sft.config.recipe import Precision
from d2e_sft.model.collation import IGNORE
from d2e_sft.model.device import autocast

_NOT_FOR_THE_MODEL = ("labels", "view_tokens", "kl_rows")


def model_inputs(batch: Mapping[str, Any], device: torch.device | None = None) -> dict[str, Any]:
    """Turn the batch of a collator into model inputs: `targets`, `content` and `weights` (N,) instead of padded rows.

    Args:
        device: moves the tensors there; None leaves them.
    """
    labels: Tensor = batch["labels"]
    inputs = {name: value for name, value in batch.items() if name not in _NOT_FOR_THE_MODEL}
    answers = labels.ne(IGNORE)
    inputs["targets"] = labels[answers]
    for name in ("content", "weights"):
        if name in inputs:
            inputs[name] = inputs[name][answers]
    return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in inputs.items()}


def forward_backward(model: nn.Module, inputs: Mapping[str, Any], precision: Precision, device: torch.device) -> None:
    """Add a micro-batch's gradients to a model with an attached objective; the precision is resolved, not `auto`."""
    with autocast(precision, device):
        loss = model(**inputs)["loss"] / len(inputs["targets"])
    loss.backward()


def enable_checkpointing(model: Any) -> None:
    """Turn gradient checkpointing on as the trainer does; transformers 5.17 has only the former name."""
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable()


def checkpointing_argument() -> str:
    """Return the name of gradient checkpointing in TrainingArguments, which changed after transformers 5.17."""
    from transformers import TrainingArguments

    known = TrainingArguments.__dataclass_fields__
    return "activation_checkpointing" if "activation_checkpointing" in known else "gradient_checkpointing"
