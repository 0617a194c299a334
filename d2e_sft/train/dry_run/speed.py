"""Measure time and memory of a run on a few real micro-batches and one optimiser step."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from d2e_sft.config.recipe import Recipe, TrainSection
from d2e_sft.model.collation import Row
from d2e_sft.model.device import PeakMemory, timed, usable_device
from d2e_sft.model.micro_batch import forward_backward, model_inputs
from d2e_sft.model.packing_support import Layout
from d2e_sft.model.token_budget import TokenBudgetSteps, TokenCosts
from d2e_sft.train.prepare import Steps
from d2e_sft.util.errors import UserError

_ENOUGH_S = 10.0  # no further micro-batch is timed after this
_DRAWS = 32  # micro-batches whose tokens are averaged


@dataclass(frozen=True)
class Speed:
    """Seconds, and peak bytes, on this machine's device."""

    per_micro_batch: float
    per_step: float  # the optimiser's own part
    micro_batches: int  # timed
    peak: int | None = None  # on a CPU the growth of the process, with its weights; None if not measurable


def measure_speed(
    model: nn.Module,
    batches: Sequence[Mapping[str, Any]],
    heaviest: Mapping[str, Any],
    tokens_each: float,
    train: TrainSection,
) -> Speed:
    """Time real micro-batches and one optimiser step; this changes the model's weights.

    Args:
        model: The model after `attach_objective`.
        batches: At least two micro-batches of the layout's collator; the first one is a warm-up.
        heaviest: The micro-batch that takes the most memory; it runs last, while gradients and moments are in memory.
        tokens_each: Average tokens of a micro-batch, to which the times are scaled.
    """
    device = usable_device()
    memory: PeakMemory | None = None
    with suppress(UserError):  # not available on this device or system
        memory = PeakMemory()
    model.to(device).train()
    forward_backward(model, model_inputs(batches[0], device), train.precision, device)
    seconds, tokens, measured = 0.0, 0, 0
    for batch in batches[1:]:
        inputs = model_inputs(batch, device)
        seconds += timed(partial(forward_backward, model, inputs, train.precision, device), device)[1]
        tokens += batch["input_ids"].numel()
        measured += 1
        if seconds > _ENOUGH_S:
            break
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, fused=True)

    def step() -> None:
        nn.utils.clip_grad_norm_(trained, train.max_grad_norm)
        optimizer.step()

    step()  # makes the moments
    per_step = timed(step, device)[1]
    forward_backward(model, model_inputs(heaviest, device), train.precision, device)
    peak = None if memory is None else int(memory.peak_mb() * 2**20)
    if peak is not None and device.type == "cpu":  # the process held them before
        peak += sum(tensor.untyped_storage().nbytes() for tensor in (*model.parameters(), *model.buffers()))
    return Speed(seconds / tokens * tokens_each, per_step, measured, peak)


@dataclass(frozen=True)
class Drawn:
    """Micro-batches from the start of a run, as row indices."""

    micro_batches: list[list[int]]
    of_a_step: float  # average micro-batches per optimiser step and process
    heaviest: list[int]  # rows of the micro-batch with the most tokens as laid out


def draw(recipe: Recipe, rows: Sequence[Row], layout: Layout, steps: Steps) -> Drawn:
    """Draw the first micro-batches of a run, shuffled, and the one that takes the most memory."""
    train, costs = recipe.train, TokenCosts.of(rows, layout, recipe.d2e.step_views)
    if train.micro_batch_tokens is None:
        size, order = train.per_device_train_batch_size, list(range(len(rows)))
        longest = sorted(order, key=lambda i: costs.tokens[i], reverse=True)
        random.Random(0).shuffle(order)
        found = [order[start : start + size] for start in range(0, len(rows), size)]
        return Drawn(found[:_DRAWS], steps.accumulation, longest[:size])
    plan = TokenBudgetSteps(
        costs, train.batch_size, train.micro_batch_tokens, seed=train.seed, processes=steps.processes
    )
    epoch = list(plan)
    found = [part for step in epoch for part in step if part]
    return Drawn(found[:_DRAWS], len(found) / len(epoch), max(found, key=costs.of_micro_batch))


def seconds_in_all(speed: Speed, steps: Steps, cut: float = 1.0) -> float:
    """Seconds of a run whose processes are all as fast as the measured one.

    Args:
        cut: average micro-batches into which one counted by `steps` is split.
    """
    return steps.micro_batches_in_all * cut * speed.per_micro_batch + steps.total * speed.per_step


def hours(seconds: float) -> str:
    """`2 h 05 min`, `3 min 20 s` or `12 s`."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
