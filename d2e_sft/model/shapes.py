"""Shapes of published models without their weights, and the arithmetic of a training step.

Speed and memory depend on shapes and not on the values of weights, so nothing is downloaded. FLOPs are those of the
model (PaLM, arXiv:2204.02311, appendix B): two per weight and token in the forward, and four in the backward, of which
frozen weights need two. Attention counts pairs of tokens; recomputation is not counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from d2e_sft.util.files import load_package_yaml

if TYPE_CHECKING:
    import torch

    from d2e_sft.model.packing import AttentionPlan

SHAPES: dict[str, dict[str, Any]] = load_package_yaml(Path(__file__).with_name("shapes.yaml"))
_COMMON = {"max_position_embeddings": 16_384, "bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0}


def config_of(shape: str, layers: int | None = None) -> Any:
    """Return the configuration of a key of `SHAPES`; `layers` replaces the model's own number."""
    from transformers import AutoConfig

    fields = _COMMON | SHAPES[shape] | ({} if layers is None else {"num_hidden_layers": layers})
    return AutoConfig.for_model(**fields)


def random_model(
    shape: str, device: torch.device, dtype: torch.dtype | None = None, *, layers: int | None = None
) -> Any:
    """Make a causal language model with random weights, in float32 by default; `layers` replaces the shape's own."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng(), device:
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(
            config_of(shape, layers), dtype=dtype or torch.float32, attn_implementation="sdpa"
        )
    return model.to(device)


@dataclass(frozen=True)
class Work:
    """A step's tokens in the layers, positions in the head, attending pairs; `without_gradient` is forward only."""

    tokens: int
    positions: int
    pairs: int
    tokens_without_gradient: int = 0
    pairs_without_gradient: int = 0

    @classmethod
    def of_batch(cls, batch: Mapping[str, Any], view_gradients: str = "all") -> Work:
        """Return the work of a collator's batch; padding counts as tokens."""
        forest, index = batch.get("forest"), batch["answer_index"]
        positions = index.numel() if view_gradients == "all" else index.shape[1]
        if forest is not None:
            rest = (forest.lead, forest.length)
            pairs = _pairs(forest.plan(*rest)) if forest.lead < forest.length else 0
            return cls(forest.lead, positions, _pairs(forest.plan(0, forest.lead)), rest[1] - rest[0], pairs)
        rows, width = batch["input_ids"].shape
        trained = rows if view_gradients == "all" else batch["samples"]
        if "decoder_input_ids" in batch:  # encoder and decoder see each row once each; counted as one
            width += batch["decoder_input_ids"].shape[1]
        per_row, untrained = width * (width + 1) // 2, rows - trained
        return cls(trained * width, positions, trained * per_row, untrained * width, untrained * per_row)

    def flops(self, model: Any, *, recompute: bool = False) -> float:
        """Return the FLOPs of forward and backward; `recompute` runs the layers' forward once more (checkpointing)."""
        config = model.config.get_text_config()
        embeddings = {id(module.weight) for module in (model.get_input_embeddings(), model.get_output_embeddings())}
        layers = [parameter for parameter in model.parameters() if id(parameter) not in embeddings]
        weights = sum(parameter.numel() for parameter in layers)
        frozen = sum(parameter.numel() for parameter in layers if not parameter.requires_grad)
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        attention = 4 * config.num_hidden_layers * config.num_attention_heads * width
        head = 2 * config.vocab_size * config.hidden_size
        forward = 2 * weights * self.tokens + attention * self.pairs
        trained = (4.0 if recompute else 3.0) * forward - 2 * frozen * self.tokens + 3 * head * self.positions
        return trained + 2 * weights * self.tokens_without_gradient + attention * self.pairs_without_gradient


def _pairs(plan: AttentionPlan) -> int:
    pairs = 0
    for block in plan.blocks:
        queries, keys = block.q_end - block.q_start, block.k_end - block.k_start
        pairs += queries * (queries + 1) // 2 if block.causal else queries * keys
    return pairs
