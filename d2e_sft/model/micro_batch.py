"""One micro-batch as the trainer, the dry run and the speed tests run it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from d2e_sft.config.recipe import Precision
from d2e_sft.model.collation import IGNORE
from d2e_sft.model.device import autocast, without_cudnn_attention

_OF_PAIRS = ("rejected", "owner", "reference", "tokens_per_pair")
_NOT_FOR_THE_MODEL = ("labels", "view_tokens", "kl_rows", *_OF_PAIRS)


@dataclass(frozen=True)
class Pairs:
    """The gold and the rejected answers of a micro-batch. No tensor, so FSDP does not cast it.

    Legend: B samples, R of them with a rejected answer, N gold and M rejected tokens, A tokens of the longest answer.

    Attributes:
        targets: (N + M,) the tokens, the `gold` ones first.
        answers: (B + R, A) bool, the places of these tokens in their answers.
        owner: (R,) the sample of each rejected answer.
        reference: (B + R,) log-probabilities of the answers by the reference; None without one.
        tokens_per_pair: gold tokens / pairs, of all micro-batches that the loss is a mean over.
    """

    targets: Tensor
    gold: int
    answers: Tensor
    owner: Tensor
    reference: Tensor | None
    tokens_per_pair: Tensor

    @property
    def size(self) -> int:
        """The number of samples, B."""
        return len(self.answers) - len(self.owner)

    @classmethod
    def of(cls, batch: Mapping[str, Any]) -> Self:
        """Return the pairs of a `PairCollator`'s batch, by itself or with the `tokens_per_pair` of a whole step."""
        labels, owner = batch["labels"], batch["owner"]
        both, gold = torch.cat([labels, batch["rejected"]]), int(labels.ne(IGNORE).sum())
        ratio = batch.get("tokens_per_pair", torch.tensor(gold / max(len(owner), 1), device=labels.device))
        places = both.ne(IGNORE)
        return cls(both[places], gold, places, owner, batch.get("reference"), ratio)

    def to(self, device: torch.device) -> Self:
        """Return the same on a device."""
        tensors: dict[str, Any] = {name: one.to(device) for name, one in vars(self).items() if isinstance(one, Tensor)}
        return replace(self, **tensors)


def model_inputs(batch: Mapping[str, Any], device: torch.device | None = None) -> dict[str, Any]:
    """Turn the batch of a collator into model inputs: `targets` and `content` (N,) instead of padded rows.

    The rejected answers of a batch become `pairs`.

    Args:
        device: moves the tensors there; None leaves them.
    """
    batch = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in batch.items()}
    labels: Tensor = batch["labels"]
    inputs = {name: value for name, value in batch.items() if name not in _NOT_FOR_THE_MODEL}
    answers = labels.ne(IGNORE)
    inputs["targets"] = labels[answers]
    if "content" in inputs:
        inputs["content"] = inputs["content"][answers]
    if "owner" in batch:
        inputs["pairs"] = Pairs.of(batch)
    return inputs


@without_cudnn_attention()
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


def may_leave_parameters_out(model: nn.Module) -> bool:
    """Whether some trained weights may have no part in a forward pass on text, so that DDP must look for them.

    Such are experts, layers that are skipped at random, and parts for images or sound.
    """
    config: Any = getattr(model, "config", None)
    if config is None or config.get_text_config() is not config:
        return True
    skips = any(getattr(config, name, 0) for name in ("layerdrop", "encoder_layerdrop", "decoder_layerdrop"))
    return skips or any("expert" in name for name, one in model.named_parameters() if one.requires_grad)
