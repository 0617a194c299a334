"""Balanced micro-batches within a token budget.

The seed decides which samples a step takes, their lengths how they are cut. The cut changes only memory and time.

Legend: n samples, S samples of a step, P processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import Dataset, Sampler

from d2e_sft.config.recipe import D2ESection
from d2e_sft.model.collation import IGNORE, Row, computed, right_pad, sources
from d2e_sft.model.packing import common_length, pack
from d2e_sft.model.packing_support import Layout

REPEATED = "repeated"  # marks a micro-batch with weight 0 that only keeps processes in step


@dataclass(frozen=True)
class TokenCosts:
    """The tokens that each row adds to a micro-batch.

    Packed micro-batches may hold fewer tokens: prefixes that only some samples share are counted for each. Padded rows
    are as wide as the widest.

    Attributes:
        tokens: (n) of each row; of its widest view if rows are padded.
        shared: Tokens of the prefix that all samples share, which a packed micro-batch holds once.
        views: Computed views of each row if rows are padded, else empty.
    """

    tokens: Sequence[int]
    shared: int = 0
    views: Sequence[int] = ()

    @classmethod
    def of(cls, rows: Sequence[Row], layout: Layout, d2e: D2ESection) -> TokenCosts:
        """Count the tokens of each row in a training step, which takes about 0.1 ms per row."""
        views = d2e.step_views
        padded = layout.packing in ("batched", "encoder_decoder")
        tokens, counts, first, shared = list[int](), list[int](), None, 0
        for row in rows:
            answer, own = list(row["answer"][:-1]), computed(sources([row], views, d2e.view_gradients))
            prompts = [list(row[views[v]]) for v in own]
            counts.append(len(own))
            if padded:
                tokens.append(max(map(len, prompts)) + len(answer))
                continue
            tokens.append(len(pack([[[*prompt, *answer] for prompt in prompts]]).tokens))
            if first is None:
                first = prompts[0]
                shared = min(map(len, prompts)) if layout.packing == "shared_batch" else 0
            if shared:
                shared = min(shared, *(common_length([first, prompt]) for prompt in prompts))
        return cls(tokens, shared, counts if padded else ())

    def of_micro_batch(self, rows: Sequence[int]) -> int:
        """Return an upper bound of the tokens of the rows together."""
        if not rows:
            return 0
        if self.views:
            return sum(self.views[i] for i in rows) * max(self.tokens[i] for i in rows)
        return sum(self.tokens[i] - self.shared for i in rows) + self.shared


def cut_by_tokens(rows: Sequence[int], costs: TokenCosts, budget: int, processes: int = 1) -> list[list[int]]:
    """Cut the rows of an optimiser step into micro-batches of at most `budget` tokens, a multiple of `processes`.

    Packed micro-batches are filled evenly (the longest sample first, each into the emptiest one), padded ones hold
    samples of similar length. A sample over the budget is a micro-batch of its own. With fewer samples than processes,
    some micro-batches are empty.
    """
    order = sorted(rows, key=lambda i: (-costs.tokens[i], i))
    cut = _in_runs if costs.views else _evenly
    count = processes
    while True:
        parts = cut(order, costs, budget, count)
        fits = all(len(part) <= 1 or costs.of_micro_batch(part) <= budget for part in parts)
        if fits and len(parts) % processes == 0:
            return parts
        count = max(count, len(parts) - 1) // processes * processes + processes


def _evenly(order: Sequence[int], costs: TokenCosts, budget: int, count: int) -> list[list[int]]:
    count = max(count, min(len(order), costs.of_micro_batch(order) // budget))
    parts: list[list[int]] = [[] for _ in range(count)]
    loads = [0] * count
    for i in order:
        emptiest = loads.index(min(loads))
        parts[emptiest].append(i)
        loads[emptiest] += max(costs.tokens[i] - costs.shared, 1)
    return parts


def _in_runs(order: Sequence[int], costs: TokenCosts, budget: int, count: int) -> list[list[int]]:
    parts: list[list[int]] = []
    for i in order:
        if parts and costs.of_micro_batch([*parts[-1], i]) <= budget:
            parts[-1].append(i)
        else:
            parts.append([i])
    while len(parts) < count:
        fullest = max(range(len(parts)), key=lambda at: len(parts[at]))
        half = len(parts[fullest]) // 2
        parts[fullest : fullest + 1] = [parts[fullest][:half], parts[fullest][half:]]
    return parts


class TokenBudgetSteps(Sampler[list[list[int]]]):
    """Yields this process's micro-batches of each optimiser step, as row indices; equally many on each process.

    Rows are ordered as by accelerate's seedable sampler; a step's samples depend neither on budget nor processes.

    Args:
        step_size: samples per optimiser step, over all processes.
        budget: tokens per micro-batch.
    """

    def __init__(
        self, costs: TokenCosts, step_size: int, budget: int, *, seed: int, rank: int = 0, processes: int = 1
    ) -> None:
        self.costs, self.step_size, self.budget = costs, step_size, budget
        self.seed, self.rank, self.processes = seed, rank, processes
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Select the shuffle of the next pass."""
        self.epoch = epoch

    def __len__(self) -> int:
        return math.ceil(len(self.costs.tokens) / self.step_size)

    def __iter__(self) -> Iterator[list[list[int]]]:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order: list[int] = torch.randperm(len(self.costs.tokens), generator=generator).tolist()
        for start in range(0, len(order), self.step_size):
            parts = cut_by_tokens(order[start : start + self.step_size], self.costs, self.budget, self.processes)
            yield parts[self.rank :: self.processes]


class MicroBatchRows(Dataset[list[Row]]):
    """Rows indexed by lists, for a loader whose batches are the micro-batches of a step."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, indices: Sequence[int]) -> list[Row]:
        # All processes run equally many forwards, so an empty micro-batch runs a row with weight 0.
        return [self.rows[i] for i in indices] or [{**self.rows[0], REPEATED: True}]


@dataclass(frozen=True)
class StepCollator:
    """Collates each micro-batch of a step, under `micro_batches`; `labels` holds the answers that count."""

    collate: Callable[[Sequence[Row]], dict[str, Any]]

    def __call__(self, step: Sequence[Sequence[Row]]) -> dict[str, Any]:
        parts = [
            {**self.collate(rows), **({REPEATED: True} if any(REPEATED in row for row in rows) else {})}
            for rows in step
        ]
        answers = [row["answer"] for rows in step for row in rows if REPEATED not in row]
        return {"micro_batches": parts, "labels": right_pad(answers or [[IGNORE]], IGNORE)}
