"""`d2e bench gpu`: training, evaluation and decoding in the shapes of published models on one accelerator, in minutes.

Weights are random, so nothing is downloaded. Every case is written to the file as soon as it is measured; a case that
does not fit the memory or the time is listed as skipped. A rehearsal runs tiny shapes, to test the bench itself.
"""

from __future__ import annotations

import gc
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from d2e_sft.bench.decode import measure_decoding
from d2e_sft.bench.engines import (
    ENGINES,
    PREFERENCE_ENGINES,
    PREFIX,
    QUESTION,
    Engine,
    bias_engine,
    synthetic_pairs,
    synthetic_rows,
)
from d2e_sft.bench.gpu_answers import TASKS
from d2e_sft.bench.gpu_report import Report
from d2e_sft.bench.shapes import Peaks, measure_peaks, work_of
from d2e_sft.bench.step_rows import compare
from d2e_sft.bench.train import Run, cases_of, chosen, measure
from d2e_sft.bench.trl_peer import trl_engines, trl_is_missing
from d2e_sft.config.recipe import D2ESection, Precision
from d2e_sft.model.device import PeakMemory, usable_device
from d2e_sft.model.packing_support import choose_layout
from d2e_sft.model.shapes import SHAPES, Work, random_model
from d2e_sft.util.errors import UserError

_OF_ALL_SHAPES = "training"
_FLOAT16, _PREFERENCE, _BIAS = _OF_THE_FIRST = ("float16", "preference", "bias model")
_PACKAGES = ("torch", "transformers", "accelerate", "peft", "trl", "triton")


@dataclass(frozen=True)
class Plan:
    """What to measure: a micro-batch to train on for each shape, and batches to decode."""

    training: dict[str, tuple[int, int]]  # shape → samples, tokens of a context
    batches: tuple[int, ...]
    prompt: int
    new_tokens: int
    repeats: int
    precision: Precision
    answered: dict[str, int]  # key of `TASKS` → samples


# Micro-batches of 3 to 9 thousand tokens: enough to fill an accelerator of 80 GB and up, weights in float32.
ACCELERATOR = Plan(
    training={"smollm2-135m": (16, 350), "qwen1.5-7b": (8, 350), "qwen3-0.6b": (16, 350), "qwen3-4b": (8, 350)},
    batches=(8, 32),
    prompt=600,
    new_tokens=32,
    repeats=5,
    precision="bfloat16",
    answered={"evaluation": 80, "refiner by likelihood": 8},  # more than run at a time, so prompts wait
)
REHEARSAL = Plan(
    training={"tiny": (3, 30)}, batches=(2,), prompt=PREFIX + QUESTION + 20, new_tokens=4, repeats=2,
    precision="float32", answered={"evaluation": 66, "refiner by likelihood": 2},
)  # fmt: skip


def bench_gpu(
    *,
    file: Path | None,
    seconds: float,
    shapes: Sequence[str] = (),
    rehearse: bool = False,
    progress: Callable[[str], object] = lambda line: None,
) -> Report:
    """Measure as many cases as the time allows.

    Args:
        file: The report, written again after every case.
        seconds: Time limit; no case or repetition starts after it.
        shapes: Keys of `SHAPES`; empty for those of the plan.
        rehearse: Use tiny shapes on any device; D2E_DEVICE=cpu: on the CPU.

    Raises:
        UserError: there is no accelerator, or a shape or D2E_DEVICE is unknown.
    """
    if (wanted := os.environ.get("D2E_DEVICE")) not in (None, "", "cpu", "cuda"):
        raise UserError(f"D2E_DEVICE={wanted!r}: expected cuda or cpu", "leave it out to take the accelerator")
    started, device = time.monotonic(), torch.device("cpu") if wanted == "cpu" else usable_device()
    plan = _plan(device, shapes, rehearse or wanted == "cpu")
    versions = {name: version(name) for name in _PACKAGES if find_spec(name) is not None}
    report = Report(measure_peaks(device), {"python": platform.python_version(), **versions})
    missing = trl_is_missing()
    if missing is not None:
        report.skipped.append({"case": "training, TRL", "reason": missing})
    first, end = next(iter(plan.training)), started + seconds
    trainings = [(_OF_ALL_SHAPES, shape) for shape in plan.training] + [(case, first) for case in _OF_THE_FIRST]
    tasks: list[tuple[str, Callable[[], Any]]] = [
        (f"{case}, {shape}", partial(_train, report, plan, shape, device, end, case)) for case, shape in trainings
    ]
    tasks += [(f"{task}, {first}", partial(_answer, report, plan, first, device, task)) for task in TASKS]
    tasks += [
        (f"decoding, {shape}, batch {batch}", partial(_decode, report, plan, shape, batch, device))
        for shape in plan.training
        for batch in plan.batches
    ]
    for name, act in tasks:
        is_over = time.monotonic() >= started + seconds
        reason = f"the {seconds:.0f} s were over" if is_over else attempt(act)
        if reason is not None:
            report.skipped.append({"case": name, "reason": reason})
        report.seconds = round(time.monotonic() - started, 1)
        progress(f"{name}: {'measured' if reason is None else f'skipped, {reason}'} ({report.seconds:.0f} s)")
        report.save(file)
    return report


def _plan(device: torch.device, shapes: Sequence[str], rehearse: bool) -> Plan:
    unknown = [shape for shape in shapes if shape not in SHAPES]
    if unknown:
        raise UserError(f"--shapes {','.join(shapes)}: no shape {unknown[0]!r}; there are {', '.join(SHAPES)}")
    if rehearse:
        return REHEARSAL
    if device.type == "cpu":
        raise UserError(
            "d2e bench gpu: there is no accelerator that torch can use here",
            remedy="D2E_DEVICE=cpu or --rehearse runs tiny shapes; d2e bench train and decode measure on a CPU",
        )
    known = ACCELERATOR.training
    return replace(ACCELERATOR, training={shape: known.get(shape, (8, 350)) for shape in shapes or known})


def attempt(act: Callable[[], Any]) -> str | None:
    """Run a case; return why it could not be measured, or None."""
    try:
        act()
    except torch.OutOfMemoryError:
        return "out of memory"
    except Exception as error:  # a compiler, a driver or another library may raise anything
        return f"failed: {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    finally:
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return None


def _train(report: Report, plan: Plan, shape: str, device: torch.device, end: float, case: str) -> None:
    memory = PeakMemory(device)
    model = random_model(shape, device).train()
    layout = choose_layout(model, D2ESection(), "shared_batch")
    report.attention[shape] = layout.attention
    samples, context = plan.training[shape]
    words = model.config.get_text_config().vocab_size
    rows = synthetic_rows(samples, context, words)
    rows = synthetic_pairs(rows, words) if case == _PREFERENCE else rows
    precision: Precision = "float16" if case == _FLOAT16 else plan.precision
    cases = list(cases_of(_engines(case, precision), True, rows))
    for repeat in measure(Run(model, layout.attention, precision, memory), cases, plan.repeats):
        if repeat and time.monotonic() >= end:
            break
    best = report.device.best_flops
    for one, row in zip(cases, compare(cases, context, samples), strict=True):
        flops = work_of(one.engine, one.rows, one.d2e).flops(model)
        seconds = row.median_ms / 1000
        figures = {
            "shape": shape,
            "case": case,
            **asdict(row),
            "precision": precision,
            "timed_steps": len(one.seconds),
            "tflops_per_s": round(flops / seconds / 1e12, 3),
            "model_flop_utilisation": round(flops / seconds / best, 4),
        }
        report.training.append(figures)


def _engines(case: str, precision: Precision) -> list[Engine]:
    """Return the engines that take turns in a training; those of TRL are left out if it is not installed."""
    if case in (_FLOAT16, _BIAS):
        return [*chosen(ENGINES, ["shared_batch"]), *([bias_engine()] if case == _BIAS else [])]
    prefers = case == _PREFERENCE
    trl = () if trl_is_missing() else trl_engines(precision, prefers=prefers)
    return [*(PREFERENCE_ENGINES if prefers else ENGINES), *trl]


def _answer(report: Report, plan: Plan, shape: str, device: torch.device, task: str) -> None:
    model = random_model(shape, device, getattr(torch, plan.precision)).eval()
    for row in TASKS[task](model, plan.prompt, plan.answered[task], plan.new_tokens, 2):
        report.answering.append({"shape": shape, "task": task, **asdict(row), "dtype": plan.precision})


def _decode(report: Report, plan: Plan, shape: str, batch: int, device: torch.device) -> None:
    model = random_model(shape, device, getattr(torch, plan.precision)).eval()
    row = measure_decoding(model, plan.prompt, batch, plan.new_tokens, 2)
    floor = 1000 * _decoding_floor(model, row.prompt, batch, plan.new_tokens, report.device)
    report.decoding.append(
        {
            "shape": shape,
            **asdict(row),
            "dtype": plan.precision,
            "new_tokens_per_s": round(1000 * batch * plan.new_tokens / row.debiased_ms, 1),
            "roofline_ms": round(floor, 3),
            "debiased_to_roofline": round(row.debiased_ms / floor, 2),
        }
    )


def _decoding_floor(model: Any, prompt: int, batch: int, new_tokens: int, peaks: Peaks) -> float:
    """Return the least seconds of plain decoding: the prompts' arithmetic, and reading all weights per new token."""
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    prompts = Work(batch * prompt, 0, batch * prompt * (prompt + 1) // 2).flops(model) / 3
    return prompts / peaks.best_flops + (new_tokens - 1) * size / peaks.bytes_per_s
