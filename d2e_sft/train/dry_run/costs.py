"""Memory and time of a planned run, as lines of text."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch

from d2e_sft.config.recipe import Recipe
from d2e_sft.model.device import usable_device
from d2e_sft.model.packing_support import Layout
from d2e_sft.train.dry_run.memory import MemoryEstimate, estimate_memory
from d2e_sft.train.dry_run.speed import Drawn, Speed, hours, seconds_in_all
from d2e_sft.train.prepare import Steps

# Launcher → the parts that it divides among its processes, and those that it keeps in host memory.
SHARDED: dict[str, tuple[str, ...]] = {
    "ddp": (),
    "fsdp2": ("weights", "gradients", "optimizer"),
    "zero2": ("gradients", "optimizer"),
    "zero2-offload": ("gradients", "optimizer"),
    "zero3": ("weights", "gradients", "optimizer"),
    "zero3-offload": ("weights", "gradients", "optimizer"),
}
ON_HOST: dict[str, tuple[str, ...]] = {"zero2-offload": ("optimizer",), "zero3-offload": ("weights", "optimizer")}


@dataclass(frozen=True)
class Plan:
    """A run that is shown: its model with the layout and steps, and the micro-batches that are tried."""

    recipe: Recipe
    model: Any
    layout: Layout
    steps: Steps
    drawn: Drawn
    heaviest: dict[str, Any]  # the micro-batch that takes the most memory
    launcher: str | None

    @property
    def device_name(self) -> str:
        device = usable_device()
        return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def memory_lines(plan: Plan, speed: Speed | None) -> list[str]:
    """The measured peak, if the run fits this machine and is meant for it; otherwise an estimate."""
    if plan.launcher is not None or speed is None or speed.peak is None:
        return _estimated_lines(plan)
    optim, on_cpu = plan.recipe.train.optim, usable_device().type == "cpu"
    of = "growth of this process, with its weights" if on_cpu else "of torch's allocator"
    moments = "" if "adamw_torch" in optim else f"; with AdamW's moments, not those of {optim}"
    return [
        f"{'at the peak':<16}{gibibytes(speed.peak):>12}  measured: {of}, on {plan.device_name}, 1 process",
        f"over some micro-batches, an optimiser step and the heaviest micro-batch{moments}",
        _heaviest_line(plan),
    ]


def _estimated_lines(plan: Plan) -> list[str]:
    accumulation = math.ceil(plan.drawn.of_a_step)
    try:
        one = estimate_memory(plan.model, plan.recipe.d2e, plan.layout, plan.heaviest, plan.recipe.train, accumulation)
    except (RuntimeError, NotImplementedError, TypeError) as error:
        reason = str(error).splitlines()[0]
        return [f"not estimated: {type(plan.model).__name__} cannot be run without data ({reason})"]
    memory, on_host = (one, 0) if plan.launcher is None else on_each_device(one, plan.launcher, plan.steps.processes)
    parts = {
        "weights": memory.weights,
        "gradients": memory.gradients,
        "optimiser state": memory.optimizer,
        "activations": memory.activations,
    }
    lines = [f"{name:<16}{gibibytes(size):>12}" for name, size in parts.items()]
    lines.append(f"{'at the peak':<16}{gibibytes(memory.total):>12}  estimated, on {plan.device_name}")
    if on_host:
        lines.append(f"{'in host memory':<16}{gibibytes(on_host):>12}  per process")
    lines += [_heaviest_line(plan), "plus Python and its libraries, about 0.5 GiB, and on a GPU its context"]
    if usable_device().type == "cpu":
        lines.append(
            "glibc keeps freed blocks, so a process grows further, most with an adapter; "
            "MALLOC_MMAP_THRESHOLD_=131072 in the environment prevents that and is slower"
        )
    return lines


def on_each_device(whole: MemoryEstimate, launcher: str, processes: int) -> tuple[MemoryEstimate, int]:
    """One process's share under a launcher, and its bytes in host memory.

    Computed from the sizes. It includes DDP's communication buffers, which are as large as the gradients, and leaves
    out other engines' buffers and their copies of weights in another precision.

    Args:
        launcher: a key of `SHARDED`.
    """
    if processes == 1:
        return whole, 0
    sizes = {"weights": whole.weights, "gradients": whole.gradients, "optimizer": whole.optimizer}
    sizes |= {part: -(-sizes[part] // processes) for part in SHARDED[launcher]}
    if launcher == "ddp":
        sizes["gradients"] *= 2
    on_host = ON_HOST.get(launcher, ())
    host = sum(sizes[part] for part in on_host)
    sizes |= dict.fromkeys(on_host, 0)
    if "weights" in SHARDED[launcher]:
        sizes["weights"] += whole.largest_layer  # gathered while it is computed
    return replace(whole, **sizes), host


def _heaviest_line(plan: Plan) -> str:
    batch, budget = plan.heaviest, plan.recipe.train.micro_batch_tokens
    samples = f"{len(batch['labels'])} samples" if budget else f"the {len(batch['labels'])} longest samples"
    laid_out, apart = batch["input_ids"].numel(), batch["view_tokens"]
    return f"for the heaviest micro-batch, {samples}: {laid_out} tokens laid out, {apart} as separate views"


def gibibytes(size: int) -> str:
    """`1.25 GiB`; small sizes in MiB."""
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 / 10 else f"{size / 2**20:.1f} MiB"


def time_lines(plan: Plan, speed: Speed | None) -> list[str]:
    steps = plan.steps
    if speed is None:
        return [f"not measured: a micro-batch does not fit {plan.device_name}"]
    cut = plan.drawn.of_a_step if plan.recipe.train.micro_batch_tokens else 1.0
    lines = [
        f"{hours(seconds_in_all(speed, steps, cut))} in all, without loading and saving",
        f"a micro-batch {speed.per_micro_batch:.2f} s, the optimiser's step {speed.per_step:.2f} s",
        f"measured on this machine ({plan.device_name}), 1 process, over {speed.micro_batches} micro-batches",
    ]
    if steps.processes > 1:
        lines.append(f"the total is this machine's time divided by {steps.processes} processes (linear scaling)")
    return lines
