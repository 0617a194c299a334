"""Whole steps, each cut into micro-batches by tokens or by rows.

The seed decides which samples a step takes, their lengths and contexts how they are cut.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from d2e_sft.config.sections import TrainSection
from d2e_sft.model.collation import IGNORE, Row, right_pad
from d2e_sft.model.packing_support import Layout
from d2e_sft.model.token_budget import TokenCosts, cut_by_tokens
from d2e_sft.train.samples import Balance
from d2e_sft.util.terminal import warn

if TYPE_CHECKING:
    from d2e_sft.train.trainer import D2ETrainer

REPEATED = "repeated"  # marks a micro-batch with weight 0 that only keeps processes in step


@dataclass(frozen=True)
class Draws:
    """Which rows a step takes.

    Attributes:
        step_size: Samples per optimiser step, over all processes.
        rows_per_context: Rows with the same context that are drawn together, at most.
        balance: How often an epoch shows each row; None shows each once.
    """

    step_size: int
    seed: int
    rows_per_context: int = 1
    balance: Balance | None = None

    def order(self, costs: TokenCosts, epoch: int) -> list[int]:
        """Return the rows of an epoch in random order; each row has each place with the same probability.

        Rows are ordered as by accelerate's seedable sampler. With several rows per context, runs of rows with the same
        context are shuffled. Then the order is rotated by a random number of rows, since a shuffle of runs of uneven
        length does not treat all places alike.
        """
        generator = torch.Generator().manual_seed(self.seed + epoch)

        def permuted(count: int) -> list[int]:
            numbers: list[int] = torch.randperm(count, generator=generator).tolist()
            return numbers

        order = permuted(len(costs.tokens))
        if self.balance is not None:
            shown = self.balance.drawn(permuted)
            order = [shown[i] for i in order]
        if self.rows_per_context == 1:
            return order
        members, copies = defaultdict[Hashable, list[int]](list), Counter[int]()
        for i in order:
            members[costs.contexts[i], copies[i]].append(i)  # copies of a row are not drawn together
            copies[i] += 1
        counts = {key: math.ceil(len(rows) / self.rows_per_context) for key, rows in members.items()}
        runs = [rows[k :: counts[key]] for key, rows in members.items() for k in range(counts[key])]  # of like length
        shuffled = [i for run in permuted(len(runs)) for i in runs[run]]
        start = int(torch.randint(len(order), (), generator=generator))
        return shuffled[start:] + shuffled[:start]


class TokenBudgetSteps(Sampler[list[list[int]]]):
    """Yields this process's micro-batches of each optimiser step, as row indices; equally many on each process.

    A step's samples depend neither on budget (in tokens or rows, as `costs` counts) nor processes. `drop_last` leaves
    out an epoch's last step if it is not whole.
    """

    def __init__(
        self,
        costs: TokenCosts,
        draws: Draws,
        budget: int,
        *,
        rank: int = 0,
        processes: int = 1,
        drop_last: bool = False,
    ) -> None:
        self.costs, self.draws, self.budget = costs, draws, budget
        self.rank, self.processes, self.drop_last = rank, processes, drop_last
        self.epoch = 0

    def __len__(self) -> int:
        steps = len(self.costs.tokens) / self.draws.step_size
        return math.floor(steps) if self.drop_last else math.ceil(steps)

    def __iter__(self) -> Iterator[list[list[int]]]:
        order, size = self.draws.order(self.costs, self.epoch), self.draws.step_size
        for start in range(0, len(self) * size, size):
            parts = cut_by_tokens(order[start : start + size], self.costs, self.budget, self.processes)
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
    """Collates each micro-batch of a step, under `micro_batches`; `labels` holds those that count."""

    collate: Callable[[Sequence[Row]], dict[str, Any]]

    def __call__(self, step: Sequence[Sequence[Row]]) -> dict[str, Any]:
        parts = [
            {**self.collate(rows), **({REPEATED: True} if any(REPEATED in row for row in rows) else {})}
            for rows in step
        ]
        labels = [row for part in parts if REPEATED not in part for row in part["labels"].tolist()]
        return {"micro_batches": parts, "labels": right_pad(labels or [[IGNORE]], IGNORE)}


def step_loader(trainer: D2ETrainer) -> tuple[DataLoader[Any], TokenBudgetSteps]:
    """Return a loader of whole steps, each cut into micro-batches by tokens or by rows, and its sampler."""
    args, train, accelerator = trainer.args, trainer.recipe.train, trainer.accelerator
    costs = TokenCosts.of(trainer.train_dataset, trainer.layout, trainer.recipe.d2e)
    for problem in problems(costs, train, trainer.layout) if accelerator.is_main_process else ():
        warn(problem)
    costs, budget = costs.budgeted(train.micro_batch_tokens, args.micro_batch_rows)
    rank, processes = accelerator.process_index, accelerator.num_processes
    balance = Balance.of(trainer.recipe.data.balance, trainer.train_dataset)
    draws = Draws(args.per_device_train_batch_size * processes, args.data_seed, train.rows_per_context, balance)
    drop_last = args.dataloader_drop_last
    steps = TokenBudgetSteps(costs, draws, budget, rank=rank, processes=processes, drop_last=drop_last)
    loader = DataLoader(
        MicroBatchRows(trainer.train_dataset),
        batch_sampler=steps,
        collate_fn=StepCollator(trainer.data_collator),
        num_workers=args.dataloader_num_workers,
        pin_memory=args.dataloader_pin_memory,
        # Its own generator: without one an iteration draws from the global one, as dropout does.
        generator=torch.Generator(),
    )
    return loader, steps


def problems(costs: TokenCosts, train: TrainSection, layout: Layout) -> Iterator[str]:
    """Yield what a user should know of micro-batches before they are cut."""
    budget = train.micro_batch_tokens
    larger = 0 if budget is None else sum(costs.of_micro_batch([i]) > budget for i in range(len(costs.tokens)))
    if larger:
        yield (
            f"{larger} of {len(costs.tokens)} samples have more than train.micro_batch_tokens={budget} tokens; each "
            "of them is a micro-batch by itself"
        )
    reason = costs.why_nothing_is_saved(layout)
    if train.rows_per_context > 1 and reason:
        yield (
            f"train.rows_per_context={train.rows_per_context} saves no tokens: {reason}; steps are less random for "
            "nothing, so set it to 1"
        )


def count_answers(
    batches: Sequence[dict[str, Any]], over_processes: Callable[[Tensor], Tensor], device: torch.device
) -> Tensor:
    """Return the gold answer tokens of a step's batches over all processes; batches with pairs get `tokens_per_pair`.

    `over_processes` sums counts, (2,).
    """
    parts = [part for batch in batches for part in batch.get("micro_batches", [batch])]
    tokens = sum(int(batch["labels"].ne(IGNORE).sum()) for batch in batches)
    pairs = sum(len(part.get("owner", ())) for part in parts if REPEATED not in part)
    totals = over_processes(torch.tensor([tokens, pairs], device=device))
    for part in parts:
        if "owner" in part:
            part["tokens_per_pair"] = totals[0] / totals[1].clamp(min=1)
    return totals[0]
