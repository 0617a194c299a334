"""`d2e bench batches`: how fast the input pipeline makes micro-batches, which a training must not wait for."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from d2e_sft.bench.engines import synthetic_rows
from d2e_sft.config.recipe import D2ESection
from d2e_sft.model.collation import PackedCollator
from d2e_sft.util.table import Table

VOCABULARY = 49_152  # SmolLM2's


@dataclass(frozen=True)
class Pipeline:
    """What one setting of the loader makes a second, medians; tokens are those of the packed rows.

    `workers` is transformers' `dataloader_num_workers`: 0 makes batches in the training's own process.
    """

    context: int
    samples: int
    workers: int
    samples_a_second: float
    tokens_a_second: float
    lowest_samples_a_second: float
    highest_samples_a_second: float


def bench_batches(
    contexts: Sequence[int],
    *,
    samples: int = 8,
    workers: Sequence[int] = (0, 2),
    count: int = 4000,
    repeats: int = 3,
    progress: Callable[[Pipeline], object] = lambda row: None,
) -> list[Pipeline]:
    """Read rows as training does, from a `datasets.Dataset` in random order, and collate D²E's three views of each.

    Args:
        contexts: tokens of a sample's context; the sizes of the rest are those of `d2e bench train`.
        samples: of a micro-batch.
        workers: processes that make batches; settings take turns.
        count: samples read in one pass.
        repeats: timed passes; starting the workers is not timed, the first batch neither.
    """
    import datasets

    found: list[Pipeline] = []
    for context in contexts:
        rows = datasets.Dataset.from_list(synthetic_rows(count, context, VOCABULARY))
        loaders = {number: _loader(rows, samples, number) for number in workers}
        passes = {number: list[tuple[float, float]]() for number in workers}
        for _ in range(repeats):
            for number, loader in loaders.items():
                passes[number].append(_one_pass(loader, samples))
        for number, measured in passes.items():
            rates = [rate for rate, _ in measured]
            median, tokens = statistics.median(rates), statistics.median(of_tokens for _, of_tokens in measured)
            found.append(
                Pipeline(context, samples, number, round(median), round(tokens), round(min(rates)), round(max(rates)))
            )
            progress(found[-1])
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
    """Samples and tokens a second."""
    batches = iter(loader)
    next(batches)
    made = tokens = 0
    start = time.perf_counter()
    for batch in batches:
        made += samples
        tokens += batch["input_ids"].numel()
    seconds = time.perf_counter() - start
    return made / seconds, tokens / seconds


def as_table(rows: Sequence[Pipeline]) -> Table:
    """The rows as a table."""
    columns = ("context", "samples", "workers", "samples/s", "lowest", "highest", "tokens/s")
    lines = [
        [
            str(row.context), str(row.samples), str(row.workers),
            *(f"{value:,.0f}" for value in (
                row.samples_a_second, row.lowest_samples_a_second, row.highest_samples_a_second, row.tokens_a_second,
            )),
        ]
        for row in rows
    ]  # fmt: skip
    return Table.of(columns, lines, keys=3)
