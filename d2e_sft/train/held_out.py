"""Evaluation while training: the objective on held-out rows, each counted once on any number of processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler
from transformers import Trainer

from d2e_sft.config.recipe import D2ESection
from d2e_sft.objective.metrics import ObjectiveMetrics
from d2e_sft.util.errors import UserError, did_you_mean

Measure = Callable[[], dict[str, float]]  # values by name, without `eval_`


class ProcessBatches(Sampler[list[int]]):
    """One process's batches of row indices: every `processes`-th one, and as many on each process.

    A process that has fewer repeats a batch, since all must run the same number of forwards (FSDP, ZeRO-3).

    Attributes:
        own: how many of them are its own; those behind are repeats and not to be counted.
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


class HeldOutEvaluation(Trainer):
    """Gives `Trainer.evaluate` the objective's own values, as means over all answer tokens of the held-out rows.

    Logs `eval_loss`, the objective's terms (`eval_ce`, …), `eval_debiased_accuracy`, `eval_plain_accuracy` and
    `eval_bias_share`, defined as in training. Whoever subclasses it adds micro-batches by `update_held_out`.
    """

    d2e: D2ESection
    control: Any  # transformers' own
    term_weights: Mapping[str, float]  # of the objective's terms, see `Objective`
    measures: Sequence[Measure] = ()  # what is measured beside, at each evaluation of the trainer's own rows
    # In all evaluations so far, by the clock and of the process's threads, so that they are not taken for training.
    evaluation_seconds = 0.0
    evaluation_cpu_seconds = 0.0
    evaluation_began: tuple[float, float] | None = None  # of the one under way, by the same two clocks
    _held_out: ObjectiveMetrics | None = None
    _own_batches = 0

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        """This process's share of the rows, in order."""
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(eval_dataset, str):
            dataset = self.eval_dataset[eval_dataset]
        if dataset is None:
            raise ValueError("evaluate() needs held-out rows: pass eval_dataset, here or to the trainer")
        batches = ProcessBatches(
            len(dataset), self.args.eval_batch_size, self.accelerator.process_index, self.accelerator.num_processes
        )
        # A generator of its own: without one an iteration draws from the global one, as dropout does.
        return DataLoader(dataset, batch_sampler=batches, collate_fn=self.data_collator, generator=torch.Generator())

    def evaluate(self, *args: Any, **options: Any) -> dict[str, float]:
        """As transformers' own; the time that it takes is kept apart from training's."""
        with self.evaluating():
            if self.eval_dataset is None and self.measures and not args and not options.get("eval_dataset"):
                return self._measure_alone()
            metrics: dict[str, float] = super().evaluate(*args, **options)
        return metrics

    def _measure_alone(self) -> dict[str, float]:
        metrics = {f"eval_{name}": value for measure in self.measures for name, value in measure().items()}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        wanted = self.args.metric_for_best_model
        if wanted is not None and f"eval_{wanted.removeprefix('eval_')}" not in metrics:
            known = [name.removeprefix("eval_") for name, value in metrics.items() if isinstance(value, int | float)]
            raise UserError(
                f"train.metric_for_best_model={wanted}: an evaluation has no such value.{did_you_mean(wanted, known)} "
                f"Expected one of {', '.join(known)}"
            )
        return bool(super()._determine_best_metric(metrics, trial))

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Count what is done inside as evaluation, not as training."""
        clock, cpu = self.evaluation_began = time.perf_counter(), time.process_time()
        yield
        self.evaluation_began = None
        self.evaluation_seconds += time.perf_counter() - clock
        self.evaluation_cpu_seconds += time.process_time() - cpu

    def evaluation_loop(
        self, dataloader: DataLoader[Any], *args: Any, metric_key_prefix: str = "eval", **options: Any
    ) -> Any:
        """As transformers' own, with a mean over answer tokens in place of one over batches."""
        sampler = dataloader.batch_sampler
        self._own_batches = sampler.own if isinstance(sampler, ProcessBatches) else len(dataloader)
        self._held_out = ObjectiveMetrics(self.d2e, self.term_weights, self.args.device)
        try:
            output = super().evaluation_loop(dataloader, *args, metric_key_prefix=metric_key_prefix, **options)
            values, _ = self._held_out.compute(self.accelerator)
            values = {"loss": self._held_out.loss_of(values), **values}
            if metric_key_prefix == "eval" and dataloader.dataset is self.eval_dataset:
                for measure in self.measures:
                    values |= measure()
        finally:
            self._held_out = None
        output.metrics.update({f"{metric_key_prefix}_{name}": value for name, value in values.items()})
        return output

    def update_held_out(
        self,
        sums: dict[str, torch.Tensor],
        targets: torch.Tensor,
        view_tokens: int,
        weights: torch.Tensor | None = None,
    ) -> None:
        """Count a micro-batch of the evaluation under way, unless it only keeps step with other processes."""
        if self._held_out is not None and self._own_batches > 0:
            self._held_out.update(sums, targets, view_tokens, token_weights=weights)
            self._own_batches -= 1
