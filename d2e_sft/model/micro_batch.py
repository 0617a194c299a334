"""One micro-batch as the trainer, the dry run and the speed tests run it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from d2e_sft.config.recipe import Precision
from d2e_sft.model.collation import IGNORE
from d2e_sft.model.device import autocast


def model_inputs(batch: Mapping[str, Any], device: torch.device | None = None) -> dict[str, Any]:
    """What the trainer makes of a collator's batch: `targets`, `content`, `weights` (N,) for padded rows, no counts.

    Args:
        device: where the tensors are moved; None leaves them.
    """
    labels: Tensor = batch["labels"]
    inputs = {name: value for name, value in batch.items() if name not in ("labels", "view_tokens")}
    answers = labels.ne(IGNORE)
    inputs["targets"] = labels[answers]
    for name in ("content", "weights"):
        if name in inputs:
            inputs[name] = inputs[name][answers]
    return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in inputs.items()}


def forward_backward(model: nn.Module, inputs: Mapping[str, Any], precision: Precision, device: torch.device) -> None:
    """Add a micro-batch's gradients to the parameters of a model that `attach_objective` has been given.

    Args:
        inputs: of `model_inputs`, on the model's device.
        precision: resolved, not `auto`.
    """
    with autocast(precision, device):
        sums = model(**inputs, view_accuracy=False)
        loss = sums["loss"] / len(inputs["targets"])
    loss.backward()


def enable_checkpointing(model: Any) -> None:
    """Gradient checkpointing as the trainer turns it on; transformers 5.17 has its former name alone."""
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable()


def checkpointing_argument() -> str:
    """What TrainingArguments calls gradient checkpointing, whose name transformers changed after 5.17."""
    from transformers import TrainingArguments

    known = TrainingArguments.__dataclass_fields__
    return "activation_checkpointing" if "activation_checkpointing" in known else "gradient_checkpointing"
