"""`d2e bench growth`: how the memory of a training step grows, by fake tensors: nothing is computed or loaded.

One quantity at a time grows from a base; the others stay. The figures do not depend on the machine or its load.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from d2e_sft.bench.engines import SFT, synthetic_rows
from d2e_sft.bench.shapes import config_of
from d2e_sft.config.recipe import D2ESection, Precision, TrainSection
from d2e_sft.model.attention.registry import BY_BRANCH, register
from d2e_sft.model.packing_support import Layout, collator_for
from d2e_sft.train.dry_run.memory import estimate_memory
from d2e_sft.util.table import Table

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Point:
    """A micro-batch on a model: its shape's name, tokens of a context, samples, words of the vocabulary."""

    shape: str = "smollm2-135m"
    context: int = 500
    samples: int = 4
    vocabulary: int = 49_152


@dataclass(frozen=True)
class Growth:
    """Memory at a point, in MiB: of D²E in one packed row, and of plain SFT in this engine.

    `tokens` are those of the packed row. `activations` is what lives beside weights, gradients and the optimiser's
    state at the fullest moment.
    """

    grows: str
    shape: str
    context: int
    samples: int
    vocabulary: int
    tokens: int
    weights_mib: float
    gradients_mib: float
    optimizer_mib: float
    activations_mib: float
    sft_activations_mib: float
    checkpointed_activations_mib: float
    activations_kib_a_token: float


def points() -> list[tuple[str, Point]]:
    """What grows, and each point of it."""
    return [
        *(("context", Point(context=context)) for context in (500, 1000, 2000, 4000, 8000)),
        *(("samples", Point(samples=samples)) for samples in (1, 4, 16)),
        *(("vocabulary", Point(vocabulary=words)) for words in (49_152, 151_936, 262_144)),
        *(("model", Point(shape, vocabulary=words)) for shape, words in _MODELS),
    ]


_MODELS = (("tiny", 300), ("smollm2-135m", 49_152), ("qwen3-0.6b", 151_936), ("smollm2-1.7b", 49_152))


def bench_growth(
    *, precision: Precision = "float32", progress: Callable[[Growth], object] = lambda row: None
) -> list[Growth]:
    """Estimate every point, as on a CPU (attention by branch).

    Args:
        precision: of training, `float32` or `bfloat16` for mixed precision; weights are float32.
    """
    found: list[Growth] = []
    known: dict[Point, Growth] = {}  # the base is on every list
    for grows, point in points():
        known[point] = known.get(point) or _estimate(grows, point, precision)
        found.append(replace(known[point], grows=grows))
        progress(found[-1])
    return found


def _estimate(grows: str, point: Point, precision: Precision) -> Growth:
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        config = config_of(point.shape, vocabulary=point.vocabulary)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    register()
    model.set_attn_implementation(BY_BRANCH)
    d2e, tokens = _memory(model, point, D2ESection(), precision)
    sft, _ = _memory(model, point, SFT, precision)
    checkpointed, _ = _memory(model, point, D2ESection(), precision, checkpointing=True)
    return Growth(
        grows, point.shape, point.context, point.samples, point.vocabulary, tokens, _mib(d2e.weights),
        _mib(d2e.gradients), _mib(d2e.optimizer), _mib(d2e.activations), _mib(sft.activations),
        _mib(checkpointed.activations), round(d2e.activations / 1024 / tokens, 1),
    )  # fmt: skip


def _memory(
    model: Any, point: Point, d2e: D2ESection, precision: Precision, *, checkpointing: bool = False
) -> tuple[Any, int]:
    layout = Layout("shared_batch", BY_BRANCH)
    rows = synthetic_rows(point.samples, point.context, point.vocabulary)
    batch = collator_for(layout, d2e, model.config)(rows)
    train = TrainSection(output_dir="unused", bf16=precision == "bfloat16", gradient_checkpointing=checkpointing)
    return estimate_memory(model, d2e, layout, batch, train, 2, CPU), batch["input_ids"].numel()


def _mib(size: int) -> float:
    return round(size / 2**20, 1)


def as_table(rows: Sequence[Growth]) -> Table:
    """The rows as a table, the base once; memory in MiB."""
    columns = ("model", "batch", "words", "tokens", "weights", "D²E", "SFT", "checkpointed")
    lines = [
        [
            row.shape, f"{row.samples} × {row.context:,}", f"{row.vocabulary:,}", f"{row.tokens:,}",
            *(f"{value:,.0f}" for value in (
                row.weights_mib, row.activations_mib, row.sft_activations_mib, row.checkpointed_activations_mib,
            )),
        ]
        for row in rows
    ]  # fmt: skip
    return Table.of(columns, [line for i, line in enumerate(lines) if line not in lines[:i]])
