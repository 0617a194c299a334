"""How many samples per second the input pipeline packs; a training waits for it if it is slower than the model."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from d2e_sft.bench.engines import synthetic_rows
from d2e_sft.config.recipe import D2ESection
from d2e_sft.model.collation import PackedCollator
from d2e_sft.util.table import Table

VOCABULARY = 49_152  # SmolLM2's
WORKERS = (0, 2)  # transformers' `dataloader_num_workers`; 0 makes batches in the training's own process


@dataclass(frozen=True)
class Pipeline:
    """Median rates of one number of workers; tokens are those of the packed rows."""

    context: int
    samples: int
    workers: int
    samples_per_s: float
    tokens_per_s: float


def bench_pipeline(contexts: Sequence[int], samples: int, repeats: int, *, count: int = 4000) -> list[Pipeline]:
    """Read and collate synthetic rows as a training does, in random order, with the three views of D²E.

    Args:
        contexts: tokens of a sample's context.
        samples: per micro-batch.
        repeats: timed passes for each number of workers, which take turns; the first batch is not timed.
        count: samples per pass.
    """
    import datasets

    found: list[Pipeline] = []
    for context in contexts:
        rows = datasets.Dataset.from_list(synthetic_rows(count, context, VOCABULARY))
        loaders = {number: _loader(rows, samples, number) for number in WORKERS}
        passes = [{number: _one_pass(loader, samples) for number, loader in loaders.items()} for _ in range(repeats)]
        for number in WORKERS:
            rates = zip(*(one[number] for one in passes), strict=True)
            found.append(Pipeline(context, samples, number, *(round(statistics.median(values)) for values in rates)))
    return found


def _loader(rows: Any, samples: int, workers: int) -> torch.utils.data.DataLoader[Any]:
    return torch.utils.data.DataLoader(
        rows,
        batch_size=samples,
        shuffle=True,
        num_workers=workers,
        drop_last=True,
        collate_fn=PackedCollator(D2ESection().step_views),
        generator=torch.Generator().manual_seed(0),
    )


def _one_pass(loader: torch.utils.data.DataLoader[Any], samples: int) -> tuple[float, float]:
    """Return samples and tokens per second."""
    batches = iter(loader)
    next(batches)
    start = time.perf_counter()
    sizes = [batch["input_ids"].numel() for batch in batches]
    seconds = time.perf_counter() - start
    return samples * len(sizes) / seconds, sum(sizes) / seconds


def pipeline_table(rows: Sequence[Pipeline]) -> Table:
    columns = ("context", "samples", "workers", "samples/s", "tokens/s")
    cells = [
        [str(row.context), str(row.samples), str(row.workers), f"{row.samples_per_s:,}", f"{row.tokens_per_s:,}"]
        for row in rows
    ]
    return Table.of(columns, cells, keys=3)
