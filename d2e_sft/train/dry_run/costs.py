"""Memory and time of a planned run: measured on a few real micro-batches and one optimiser step, or estimated."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from d2e_sft.model.collation import model_inputs
from d2e_sft.model.device import PeakMemory, timed, usable_device
from d2e_sft.model.forward import bare_model, enable_checkpointing, forward_backward
from d2e_sft.model.packing_support import has_no_data
from d2e_sft.objective.attach import attach_objective
from d2e_sft.train.checks import Steps
from d2e_sft.train.dry_run.memory import PARTS, estimate_memory, on_each_device
from d2e_sft.train.dry_run.plan import Plan, heaviest_line
from d2e_sft.util.errors import UserError

_ENOUGH_S = 10.0  # no further micro-batch is timed after this


@dataclass(frozen=True)
class Speed:
    """Seconds, and peak bytes, on this machine's device."""

    per_micro_batch: float
    per_step: float  # the optimiser's own part
    micro_batches: int  # timed
    peak: int | None = None  # on a CPU the growth of the process, with its weights; None if not measurable


def measure_speed(plan: Plan) -> Speed | None:
    """Time some micro-batches and an optimiser step, which changes the weights; None if they do not fit the device."""
    attach_objective(plan.model, plan.recipe.d2e, through_logits=plan.layout.through_logits)
    if plan.recipe.train.gradient_checkpointing:
        enable_checkpointing(plan.model)
    try:
        return _measured(plan)
    except torch.OutOfMemoryError:
        return None
    finally:
        plan.model.zero_grad()
        del bare_model(plan.model).forward  # the objective's


def _measured(plan: Plan) -> Speed:
    device, model, train = usable_device(), plan.model, plan.recipe.train
    memory: PeakMemory | None = None
    with suppress(UserError):  # not available on this device or system
        memory = PeakMemory()
    model.to(device).train()
    first, *others = [*plan.batches, *plan.batches][:4]
    forward_backward(model, model_inputs(first, device), train.precision, device)  # a warm-up
    seconds, tokens, measured = 0.0, 0, 0
    for batch in others:
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
    # Last, while gradients and moments are in memory.
    forward_backward(model, model_inputs(plan.heaviest, device), train.precision, device)
    peak = None if memory is None else int(memory.peak_mb() * 2**20)
    if peak is not None and device.type == "cpu":  # the process held them before
        peak += sum(tensor.untyped_storage().nbytes() for tensor in (*model.parameters(), *model.buffers()))
    return Speed(seconds / tokens * plan.average_tokens[0], per_step, measured, peak)


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
        heaviest_line(plan),
    ]


def not_estimated(plan: Plan, error: Exception) -> str:
    """Say why the memory of a model cannot be estimated."""
    name, reason = type(plan.model).__name__, str(error).splitlines()[0]
    return f"not estimated: {name} cannot be run without data ({reason})"


def _estimated_lines(plan: Plan) -> list[str]:
    accumulation = math.ceil(plan.of_a_step)
    try:
        one = estimate_memory(plan.model, plan.recipe.d2e, plan.layout, plan.heaviest, plan.recipe.train, accumulation)
    except (RuntimeError, NotImplementedError, TypeError) as error:
        return [not_estimated(plan, error)]
    memory, on_host = one, 0
    if plan.launcher is not None:
        processes = plan.steps.processes
        memory, on_host = on_each_device(one, plan.launcher, processes, accumulates=accumulation > 1)
    lines = [f"{name:<16}{gibibytes(getattr(memory, part)):>12}" for name, part in PARTS.items()]
    lines.append(f"{'at the peak':<16}{gibibytes(memory.total):>12}  estimated, on {plan.device_name}")
    if on_host:
        lines.append(f"{'in host memory':<16}{gibibytes(on_host):>12}  per process")
    lines += [heaviest_line(plan), "plus Python and its libraries, about 0.5 GiB, and on a GPU its context"]
    if usable_device().type == "cpu":
        lines.append(
            "glibc keeps freed blocks, so a process grows further, most with an adapter; "
            "MALLOC_MMAP_THRESHOLD_=131072 in the environment prevents that and is slower"
        )
    return lines


def gibibytes(size: int) -> str:
    """`1.25 GiB`; small sizes in MiB."""
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 / 10 else f"{size / 2**20:.1f} MiB"


def time_lines(plan: Plan, speed: Speed | None) -> list[str]:
    """The time of the run, and what it was computed from."""
    steps = plan.steps
    if has_no_data(plan.model):
        return ["not measured: no weights are read"]
    if speed is None:
        return [f"not measured: a micro-batch does not fit {plan.device_name}"]
    lines = [
        f"{hours(seconds_in_all(speed, steps, plan.cut))} in all, without loading and saving",
        f"a micro-batch {speed.per_micro_batch:.2f} s, the optimiser's step {speed.per_step:.2f} s",
        f"measured on this machine ({plan.device_name}), 1 process, over {speed.micro_batches} micro-batches",
    ]
    if steps.processes > 1:
        lines.append(f"the total is this machine's time divided by {steps.processes} processes (linear scaling)")
    return lines


def seconds_in_all(speed: Speed, steps: Steps, cut: float = 1.0) -> float:
    """Seconds of a run whose processes are equally fast; a micro-batch of `steps` is split into `cut` on average."""
    return micro_batches_in_all(steps, cut) * speed.per_micro_batch + steps.total * speed.per_step


def micro_batches_in_all(steps: Steps, cut: float = 1.0) -> float:
    """Micro-batches of a run and process, each of `steps` split into `cut` on average."""
    epochs, rest = divmod(steps.total, steps.per_epoch)  # the last step of an epoch may have fewer micro-batches
    return cut * (epochs * steps.micro_batches + min(rest * steps.accumulation, steps.micro_batches))


def hours(seconds: float) -> str:
    """`2 h 05 min`, `3 min 20 s` or `12 s`."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
