"""Evaluation while training: the objective on held-out rows, each counted once on any number of processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Sampler

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.config.recipe import D2ESection
from d2e_sft.data.sample import EventSample
from d2e_sft.objective.metrics import ObjectiveMetrics
from d2e_sft.util.errors import UserError, did_you_mean

Measure = Callable[[], dict[str, float]]  # values by name, without `eval_`


class ProcessBatches(Sampler[list[int]]):
    """One process's batches of row indices: every `processes`-th batch, equally many on each process.

    A process with fewer batches repeats one, since all must run the same number of forward passes (FSDP, ZeRO-3). The
    repeats come after its `own` batches and are not counted.
    """

    def __init__(self, rows: int, size: int, rank: int, processes: int) -> None:
        batches = [list(range(start, min(start + size, rows))) for start in range(0, rows, size)]
        mine = batches[rank::processes]
        self.own = len(mine)
        self.batches = [*mine, *[batches[0]] * (-(-len(batches) // processes) - len(mine))]

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class HeldOutLoader(DataLoader[Any]):
    """Batches of held-out rows, with the samples of all rows; None if the rows were given as tokens."""

    samples: list[EventSample] | None = None


class HeldOut:
    """State of evaluations: the objective's metrics over held-out rows, and the time evaluations take.

    Attributes:
        measures: Further values, computed at each evaluation of the trainer's own rows.
        seconds, cpu_seconds: Time of all finished evaluations, by the clock and by CPU time of this process.
        began: Start of the evaluation under way, by the same two clocks.
        own: Names of the values of the user's `compute_metrics`.
        decoded: The texts of the evaluation under way, by the sample's `id()` and how it was decoded.
    """

    def __init__(self, d2e: D2ESection, term_weights: Mapping[str, float], device: torch.device) -> None:
        self.measures: list[Measure] = []
        self.seconds = self.cpu_seconds = 0.0
        self.own = set[str]()
        self.began: tuple[float, float] | None = None
        self.decoded: dict[tuple[int, DecodingConfig], str] = {}
        self._new_metrics = partial(ObjectiveMetrics, d2e, term_weights, device)
        self._metrics: ObjectiveMetrics | None = None
        self._own_batches = 0

    def loader(self, rows: Any, trainer: Any) -> HeldOutLoader:
        """This process's share of the rows, in order."""
        args, accelerator = trainer.args, trainer.accelerator
        batches = ProcessBatches(len(rows), args.eval_batch_size, accelerator.process_index, accelerator.num_processes)
        # Its own generator: without one an iteration draws from the global one, as dropout does.
        return HeldOutLoader(
            rows, batch_sampler=batches, collate_fn=trainer.data_collator, generator=torch.Generator()
        )

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count the time inside as evaluation instead of training."""
        clock, cpu = self.began = time.perf_counter(), time.process_time()
        try:
            yield
        finally:  # a user's metrics may raise, and training may go on after that
            self.began = None
            self.seconds += time.perf_counter() - clock
            self.cpu_seconds += time.process_time() - cpu

    @contextmanager
    def counting(self, loader: DataLoader[Any]) -> Iterator[None]:
        """Count the micro-batches inside, each row once on any number of processes."""
        sampler = loader.batch_sampler
        self._own_batches = sampler.own if isinstance(sampler, ProcessBatches) else len(loader)
        self._metrics, self.decoded = self._new_metrics(), {}
        try:
            yield
        finally:
            self._metrics = None

    def update(self, sums: dict[str, Tensor], targets: Tensor, counts: Sequence[int]) -> None:
        """Count a micro-batch, unless it is a repeat that only keeps step with other processes."""
        if self._metrics is not None and self._own_batches > 0:
            self._metrics.update(sums, targets, counts)
            self._own_batches -= 1

    def values(self, accelerator: Any) -> dict[str, float]:
        """Means over all answer tokens of the evaluation under way."""
        assert self._metrics is not None
        values, _ = self._metrics.compute(accelerator)
        return {"loss": self._metrics.loss_of(values), **values}

    def measured(self) -> dict[str, float]:
        """The values of all `measures`."""
        return {name: value for measure in self.measures for name, value in measure().items()}

    def trained(self) -> tuple[float, float]:
        """Seconds without evaluations, by the clock and by CPU time, since an arbitrary start."""
        clock, cpu = self.began or (time.perf_counter(), time.process_time())
        return clock - self.seconds, cpu - self.cpu_seconds


def check_best_metric(wanted: str | None, metrics: Mapping[str, Any]) -> None:
    """Raise UserError, with the nearest name, if an evaluation's metrics do not contain `metric_for_best_model`."""
    if wanted is not None and f"eval_{wanted.removeprefix('eval_')}" not in metrics:
        known = [name.removeprefix("eval_") for name, value in metrics.items() if isinstance(value, int | float)]
        raise UserError(
            f"train.metric_for_best_model={wanted}: an evaluation has no such value.{did_you_mean(wanted, known)} "
            f"Expected one of {', '.join(known)}"
        )
