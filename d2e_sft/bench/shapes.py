"""The arithmetic of an engine's step, and the rates of this machine."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from d2e_sft.bench.engines import Engine
from d2e_sft.config.recipe import D2ESection
from d2e_sft.model.collation import BatchedCollator, Row
from d2e_sft.model.device import timed
from d2e_sft.model.packing_support import Layout, collator_for
from d2e_sft.model.shapes import Work
from d2e_sft.train.dry_run.cards import CARDS


def work_of(engine: Engine, rows: Sequence[Row], d2e: D2ESection) -> Work:
    """Return the work of an engine's step on these rows; padding counts as tokens."""
    answers = sum(len(row["answer"]) for row in rows)
    heads = answers * (len(d2e.views) if d2e.view_gradients == "all" else 1)
    if engine.packed:
        layout = Layout("shared_batch" if engine.shares_samples else "shared_prefix", attention="")
        return Work.of_batch(collator_for(layout, d2e, None)(rows), d2e.view_gradients)
    if engine.prefers:
        rows = [*rows, *({**row, "answer": row["rejected"]} for row in rows)]
    # Without packing: rows of one view each, as wide as the view's longest.
    widths = [BatchedCollator([view], 0)(rows)["input_ids"].shape[1] for view in d2e.views]
    if engine.name == "batched":
        widths = [max(widths)] * len(widths)
    every = engine.elsewhere  # other libraries compute logits at every position
    width = widths[0] + (1 if every else 0)
    trained = [width] if d2e.view_gradients == "original" else [width, *widths[1:]]
    others = widths[1:] if d2e.view_gradients == "original" else []
    count = len(rows)
    return Work(
        count * sum(trained), count * width if every else heads, count * sum(n * (n + 1) // 2 for n in trained),
        count * sum(others), count * sum(n * (n + 1) // 2 for n in others),
    )  # fmt: skip


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
    sheet = next((card.flops for card in CARDS.values() if re.search(rf"\b{re.escape(card.named)}\b", name)), None)
    return Peaks(name, 2 * size**3 / product, 2 * copied / copy, sheet)
