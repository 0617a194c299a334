"""Would a run fit a graphics card that is not here, and how long would it take there? Nothing is measured.

Memory is that of `memory.py`. Time is arithmetic: what a run computes and moves, over an assumed share of the rates in
the card's data sheet.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from d2e_sft.model.shapes import Work
from d2e_sft.train.checks import count_processes
from d2e_sft.train.dry_run.cards import UTILISATION, Card
from d2e_sft.train.dry_run.memory import ON_HOST, MemoryEstimate, estimate_memory, on_each_device
from d2e_sft.train.dry_run.plan import Plan, micro_batches_in_all

USABLE = 0.9  # share of the memory; the rest is for CUDA, communication and fragmentation
LAUNCHERS = ("ddp", "fsdp2", "zero2", "zero3")
OF_MEMORY, OF_LINK = 0.7, 0.5  # assumed shares of their rates


@dataclass(frozen=True)
class Load:
    """What a run holds and computes.

    Attributes:
        whole: Memory of one process that holds everything.
        half: The same with weights in the precision of training, in which sharded engines gather them.
        flops: Operations per micro-batch.
        micro_batches, steps: The run's, for one process.
        accumulates: A step has several micro-batches.
    """

    whole: MemoryEstimate
    half: MemoryEstimate
    flops: float
    micro_batches: float
    steps: int
    accumulates: bool

    @classmethod
    def of(cls, plan: Plan) -> Load:
        """Return what a planned run holds and computes; errors as `estimate_memory`."""
        d2e, train = plan.recipe.d2e, plan.recipe.train

        def estimate(model: Any, train: Any) -> MemoryEstimate:
            return estimate_memory(model, d2e, plan.layout, plan.heaviest, train, plan.accumulation)

        whole = half = estimate(plan.model, train)
        if plan.steps.processes > 1 and train.precision != "float32":
            # Nothing is cast with weights in 16 bits, so no second copy of them lies among the activations.
            cast = copy.deepcopy(plan.model).to(getattr(torch, train.precision))
            half = estimate(cast, train.model_copy(update={"bf16": False, "fp16": False}))
        works = [Work.of_batch(batch, d2e.view_gradients) for batch in plan.batches]
        flops = sum(work.flops(plan.model, recompute=train.gradient_checkpointing) for work in works) / len(works)
        micro_batches = micro_batches_in_all(plan.steps, plan.cut)
        return cls(whole, half, flops, micro_batches, plan.steps.total, plan.accumulation > 1)


@dataclass(frozen=True)
class Fit:
    """A run under a launcher, on one card of several."""

    launcher: str
    memory: MemoryEstimate
    on_host: int
    fits: bool
    times: dict[str, float] | None  # seconds of each part and in all; None if the CPU takes the optimiser's steps


def fits_on(card: Card, load: Load, launchers: Sequence[str], processes: int, utilisation: float) -> list[Fit]:
    """Return how a run fits a card under each launcher; one process needs none and has one result, `1 process`."""
    fits = []
    for launcher in launchers if processes > 1 else (count_processes(1),):
        memory, on_host = on_each_device(load.whole, launcher, processes, load.half, accumulates=load.accumulates)
        times = None if launcher in ON_HOST else times_of(card, load, launcher, processes, utilisation)
        fits.append(Fit(launcher, memory, on_host, memory.total <= USABLE * card.gib * 2**30, times))
    return fits


def times_of(card: Card, load: Load, launcher: str, processes: int, utilisation: float) -> dict[str, float]:
    """Return the seconds of a run on a card, as if computing and moving did not overlap.

    The optimiser reads gradients twice (for clipping and for the step), and reads and writes weights and state. Each
    of `n` cards sends (n − 1)/n of what its launcher moves. DDP moves the gradients twice per step. ZeRO-2 moves the
    gradients per micro-batch and the weights per step. ZeRO-3 and FSDP2 move the weights twice per micro-batch; ZeRO-3
    the gradients per micro-batch too, FSDP2 per step.
    """
    whole, half = load.whole, load.half
    moved = 4 * whole.gradients + 2 * whole.optimizer  # trained weights have as many bytes as their gradients
    shares = 1 if launcher == "ddp" else processes
    gathered = 2.0 * half.weights
    per_micro_batch, per_step = {
        "ddp": (0.0, 2.0 * whole.gradients),
        "zero2": (half.gradients, half.gradients),
        "fsdp2": (gathered, half.gradients),
        "zero3": (gathered + half.gradients, 0.0),
    }.get(launcher, (0.0, 0.0))
    passing = (load.micro_batches * per_micro_batch + load.steps * per_step) * (processes - 1) / processes
    times = {
        "computing": load.micro_batches * load.flops / (utilisation * card.flops),
        "optimiser": load.steps * moved / shares / (OF_MEMORY * card.memory * 1e9),
        "between cards": passing / (OF_LINK * card.link * 1e9),
    }
    return {**times, "in all": sum(times.values())}


def utilisation_of(model: Any) -> float:
    """Return the share of a card's operations per second that a model of its width reaches, by `UTILISATION`."""
    width = model.config.get_text_config().hidden_size
    return float(np.interp(width, list(UTILISATION), list(UTILISATION.values())))
