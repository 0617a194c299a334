"""`d2e bench train`: what a D²E step costs compared with plain SFT, engine by engine.

A timed step is the forward and backward of one micro-batch with collation, without the optimiser. Engines take turns,
so that other work on the machine affects them equally; the figures are medians.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from d2e_sft.bench.cost import cost_of
from d2e_sft.bench.engines import (
    BIAS,
    ENGINES,
    PREFER,
    PREFERENCE_ENGINES,
    SFT,
    Engine,
    synthetic_pairs,
    synthetic_rows,
)
from d2e_sft.bench.step_profile import time_by_kind
from d2e_sft.bench.step_rows import Case, Measured, compare
from d2e_sft.bench.trl_peer import trl_engines
from d2e_sft.config.objectives import ViewGradients
from d2e_sft.config.recipe import D2ESection, Precision
from d2e_sft.model.collation import Row
from d2e_sft.model.device import PeakMemory, autocast, frozen_heap, without_cudnn_attention
from d2e_sft.model.loading import load_model
from d2e_sft.model.packing_support import choose_layout
from d2e_sft.util.errors import UserError, did_you_mean


@dataclass(frozen=True)
class Training:
    """What to measure: the options of `d2e bench train`; `only` are names of engines, empty for all.

    The engines that share no prefix between samples have `unshared_samples`: their cost per sample does not depend on
    the number. The refined view of a share `unrefined` of the samples is the original one.
    """

    contexts: Sequence[int]
    samples: int
    unshared_samples: int
    repeats: int
    precision: Precision
    trl: bool = False
    objective: Literal["d2e", "prefer"] = "d2e"
    only: Sequence[str] = ()
    profile: bool = False
    unrefined: float = 0.0


def bench_training(
    model_name: str, asked: Training, progress: Callable[[str], object] = lambda line: None
) -> list[Measured]:
    """Measure every engine at every context length.

    Raises UserError if the model cannot be packed, two engines compute different losses, TRL is not installed, or an
    engine is unknown.
    """
    prefers = asked.objective == "prefer"
    known = [*(PREFERENCE_ENGINES if prefers else ENGINES)]
    engines = chosen([*known, *(trl_engines(asked.precision, prefers=prefers) if asked.trl else ())], asked.only)
    memory = PeakMemory()  # before the model is loaded: memory counts the weights
    model = load_model(model_name).model
    layout = choose_layout(model, D2ESection(), "shared_batch")
    model = model.to(memory.device).train()
    measured: list[Measured] = []
    for context in asked.contexts:
        for shared, count in ((True, asked.samples), (False, asked.unshared_samples)):
            if not any(engine.shares_samples == shared and not engine.elsewhere for engine in engines):
                continue
            vocabulary = model.config.get_text_config().vocab_size
            rows = synthetic_rows(count, context, vocabulary, unrefined=round(asked.unrefined * count))
            rows = synthetic_pairs(rows, vocabulary) if prefers else rows
            cases = list(cases_of(engines, shared, rows))
            run = Run(model, layout.attention, asked.precision, memory)
            for repeat in measure(run, cases, asked.repeats):
                progress(f"context {context}, {count} samples: {repeat} of {asked.repeats}")
            if asked.profile:
                for case in cases:
                    case.time_by_kind = time_by_kind(_step(run, case), model.device)
            measured += compare(cases, context, count)
    return measured


def chosen(engines: Sequence[Engine], only: Sequence[str]) -> list[Engine]:
    """Return the engines of these names and their baselines, all without names; UserError for an unknown name."""
    by_name = {engine.name: engine for engine in engines}
    for name in only:
        if name not in by_name:
            raise UserError(
                f"--engines {name}: expected names among {', '.join(by_name)}.{did_you_mean(name, by_name)}",
                "see d2e bench train --help; trl and trl_packed need --trl",
            )
    wanted = {*only, *(by_name[name].baseline for name in only)} or by_name.keys()
    return [engine for engine in engines if engine.name in wanted]


def cases_of(engines: Sequence[Engine], shared: bool, rows: list[Row]) -> Iterator[Case]:
    """Yield the engines that do or do not share their samples' prefix; those of other libraries are in both groups."""
    for engine in engines:
        if not engine.elsewhere and engine.shares_samples != shared:
            continue
        only = SFT if engine.is_sft else PREFER if engine.prefers else BIAS if engine.has_bias_model else None
        for d2e in [only] if only else [D2ESection(view_gradients=one) for one in get_args(ViewGradients)]:
            yield Case(engine, d2e, rows, [])


@dataclass(frozen=True)
class Run:
    """What all cases of a measurement share; `attention` is that of packed rows."""

    model: Any
    attention: str
    precision: Precision
    memory: PeakMemory


def measure(run: Run, cases: Sequence[Case], repeats: int) -> Iterator[int]:
    """Run the cases in turns, first for their memory and then `repeats` times for their time; yields each turn.

    Raises UserError if two engines compute different losses.
    """
    with frozen_heap():
        for repeat in range(repeats + 1):
            for case in cases:
                step = _step(run, case)
                if repeat == 0:
                    if case.engine.prepare is not None:
                        case.engine.prepare(run.model, case.rows)
                    run.memory.reset()
                loss, cost = cost_of(step, run.model.device)
                if repeat:
                    case.seconds.append(cost.clock_s)
                    case.cpu.append(cost.cpu_s)
                else:  # memory was just given back to the system, so this time means nothing
                    case.peak = run.memory.peak_mb()
                case.loss = loss.item()
            if repeat == 0:
                _check_same_losses(cases, run.precision)
            yield repeat


def _step(run: Run, case: Case) -> Callable[[], Tensor]:
    """Return a case's forward and backward, ready to run without gradients of an earlier step."""
    run.model.set_attn_implementation(run.attention if case.engine.packed else "sdpa")
    run.model.zero_grad(set_to_none=True)
    gc.collect()
    scaler = torch.amp.GradScaler(run.model.device.type, enabled=run.precision == "float16")

    def step() -> Tensor:
        with autocast(run.precision, run.model.device), without_cudnn_attention():
            loss = case.engine.loss(run.model, case.rows, case.d2e)
        scaler.scale(loss).backward()
        return loss

    return step


def _check_same_losses(cases: Sequence[Case], precision: Precision) -> None:
    """Reject engines that compute different losses: a fast wrong one would win."""
    tolerance = 1e-4 if precision == "float32" else 2e-2
    for sft in (True, False):
        losses = [case.loss for case in cases if case.engine.is_sft == sft]
        highest = max(losses, default=0)
        if not highest - min(losses, default=0) <= tolerance * abs(highest):  # NaN fails this, too
            named = {(case.engine.name, case.d2e.view_gradients): case.loss for case in cases}
            raise UserError(f"the engines disagree on the loss: {named}", "report it with this line")
