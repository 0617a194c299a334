"""Shapes of published models with random weights, and the arithmetic of a step.

Speed depends on shapes and not on the values of weights, so nothing is downloaded. FLOPs are those of the model (PaLM,
arXiv:2204.02311, appendix B): two per weight and token in the forward, four in the backward. Attention counts pairs of
tokens; recomputation is not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from d2e_sft.bench.engines import Engine
from d2e_sft.config.recipe import D2ESection
from d2e_sft.model.collation import BatchedCollator, PackedCollator, Row
from d2e_sft.model.device import timed

_LLAMA, _QWEN2, _QWEN3 = "llama", "qwen2", "qwen3"
# From the models' config.json: architecture, hidden, intermediate, layers, heads, key and value heads, head's width,
# vocabulary, tied head.
SHAPES: dict[str, tuple[str, int, int, int, int, int, int, int, bool]] = {
    "tiny": (_LLAMA, 32, 48, 2, 4, 2, 8, 300, True),
    "tiny-qwen3": (_QWEN3, 32, 48, 2, 4, 2, 8, 300, True),
    "smollm2-135m": (_LLAMA, 576, 1536, 30, 9, 3, 64, 49_152, True),
    "qwen3-0.6b": (_QWEN3, 1024, 3072, 28, 16, 8, 128, 151_936, True),
    "smollm2-1.7b": (_LLAMA, 2048, 8192, 24, 32, 32, 64, 49_152, True),
    "qwen3-4b": (_QWEN3, 2560, 9728, 36, 32, 8, 128, 151_936, True),
    "qwen1.5-7b": (_QWEN2, 4096, 11_008, 32, 32, 32, 128, 151_936, False),
    "llama-2-7b": (_LLAMA, 4096, 11_008, 32, 32, 32, 128, 32_000, False),
    "deepseek-llm-7b": (_LLAMA, 4096, 11_008, 30, 32, 32, 128, 102_400, False),
}
# Dense bfloat16 FLOP/s in data sheets, by a part of the device's name.
_DATA_SHEETS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "L4": 121e12, "RTX 4090": 165e12}


def config_of(shape: str, layers: int | None = None) -> Any:
    """Return the configuration of a key of `SHAPES`; `layers` replaces the model's own number."""
    from transformers import LlamaConfig, Qwen2Config, Qwen3Config

    kind, hidden, intermediate, depth, heads, key_heads, width, words, tied = SHAPES[shape]
    build: Any = {_LLAMA: LlamaConfig, _QWEN2: Qwen2Config, _QWEN3: Qwen3Config}[kind]
    return build(
        hidden_size=hidden, intermediate_size=intermediate, num_hidden_layers=layers or depth,
        num_attention_heads=heads, num_key_value_heads=key_heads, head_dim=width,
        vocab_size=words, tie_word_embeddings=tied,
        max_position_embeddings=16_384, bos_token_id=None, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip


def random_model(
    shape: str, device: torch.device, dtype: torch.dtype = torch.float32, *, layers: int | None = None
) -> Any:
    """Make a causal language model with random weights on the device; `layers` replaces the shape's own."""
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng(), device:
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config_of(shape, layers), dtype=dtype, attn_implementation="sdpa")
    return model.to(device)


@dataclass(frozen=True)
class Work:
    """A step's tokens in the layers, positions in the head, attending pairs; `without_gradient` is forward only."""

    tokens: int
    positions: int
    pairs: int
    tokens_without_gradient: int = 0
    pairs_without_gradient: int = 0

    def flops(self, model: Any) -> float:
        """Return the model FLOPs of forward and backward."""
        config = model.config.get_text_config()
        embeddings = {id(module.weight) for module in (model.get_input_embeddings(), model.get_output_embeddings())}
        weights = sum(p.numel() for p in model.parameters() if id(p) not in embeddings)
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        attention = 4 * config.num_hidden_layers * config.num_attention_heads * width
        head = 2 * config.vocab_size * config.hidden_size
        trained = 2 * weights * self.tokens + attention * self.pairs + head * self.positions
        return 3.0 * trained + 2 * weights * self.tokens_without_gradient + attention * self.pairs_without_gradient


def work_of(engine: Engine, rows: Sequence[Row], d2e: D2ESection) -> Work:
    """Return the work of an engine's step on these rows; padding counts as tokens."""
    answers = sum(len(row["answer"]) for row in rows)
    heads = answers * (len(d2e.views) if d2e.view_gradients == "all" else 1)
    if engine.packed:
        batch = PackedCollator(d2e.views, engine.shares_samples, d2e.view_gradients)(rows)
        forest = batch["forest"]
        lead = _pairs(forest.plan(0, forest.lead))
        rest = _pairs(forest.plan(forest.lead, forest.length)) if forest.lead < forest.length else 0
        return Work(forest.lead, heads, lead, forest.length - forest.lead, rest)
    # Without packing: rows of one view each, as wide as the view's longest.
    widths = [BatchedCollator([view], 0)(rows)["input_ids"].shape[1] for view in d2e.views]
    if engine.name == "batched":
        widths = [max(widths)] * len(widths)
    every = engine.is_sft  # the SFT of other libraries has logits at every position
    width = widths[0] + (1 if every else 0)
    trained = [width] if d2e.view_gradients == "original" else [width, *widths[1:]]
    others = widths[1:] if d2e.view_gradients == "original" else []
    count = len(rows)
    return Work(
        count * sum(trained), count * width if every else heads, count * sum(n * (n + 1) // 2 for n in trained),
        count * sum(others), count * sum(n * (n + 1) // 2 for n in others),
    )  # fmt: skip


def _pairs(plan: Any) -> int:
    found = 0
    for block in plan.blocks:
        queries, keys = block.q_end - block.q_start, block.k_end - block.k_start
        found += queries * (queries + 1) // 2 if block.causal else queries * keys
    return found


@dataclass(frozen=True)
class Peaks:
    """Measured rates of bfloat16 products (CPU: float32) and copies, and the data sheet's rate if known."""

    device: str
    flops: float  # a second, of a large product
    bytes_per_s: float  # read and written by a large copy
    data_sheet_flops: float | None

    @property
    def best_flops(self) -> float:
        """Return the data sheet's rate or, if unknown, the measured one."""
        return self.data_sheet_flops or self.flops


def measure_peaks(device: torch.device) -> Peaks:
    """Time a square product and a copy."""
    on_cuda = device.type == "cuda"
    size, copied = (8192, 2**30) if on_cuda else (1024, 2**26)
    dtype = torch.bfloat16 if on_cuda else torch.float32
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    source = torch.empty(copied // 4, device=device)
    target = torch.empty_like(source)
    product = min(timed(lambda: torch.mm(left, right), device)[1] for _ in range(8))
    copy = min(timed(lambda: target.copy_(source), device)[1] for _ in range(8))
    name = torch.cuda.get_device_name(device) if on_cuda else device.type
    sheet = next((flops for part, flops in _DATA_SHEETS.items() if part in name), None)
    return Peaks(name, 2 * size**3 / product, 2 * copied / copy, sheet)
