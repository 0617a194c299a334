"""`d2e bench gpu`: training and decoding in the shapes of published models, on one accelerator, within minutes.

Weights are random, so nothing is downloaded. Every case is written to the file as soon as it is measured; what does
not fit the memory or the time is a row that says so. On a machine without an accelerator it runs tiny shapes, which
shows that it works and nothing else.
"""

from __future__ import annotations

import gc
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from d2e_sft.bench.decode import measure_decoding
from d2e_sft.bench.engines import ENGINES, PREFIX, QUESTION
from d2e_sft.bench.shapes import SHAPES, Deadline, Peaks, Work, measure_peaks, random_model, work_of
from d2e_sft.bench.train import cases_of, compare, measure
from d2e_sft.bench.trl_peer import trl_engines, trl_is_missing
from d2e_sft.config.recipe import D2ESection, Precision
from d2e_sft.model.device import usable_device
from d2e_sft.model.packing_support import choose_layout
from d2e_sft.model.peak_memory import PeakMemory
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import write_json
from d2e_sft.util.table import Table

_PACKAGES = ("torch", "transformers", "accelerate", "peft", "trl", "triton")


@dataclass(frozen=True)
class Plan:
    """What is measured: a micro-batch to train on for each shape, and batches to decode."""

    training: dict[str, tuple[int, int]]  # shape → samples, tokens of a context
    decoding: tuple[str, ...]
    batches: tuple[int, ...]
    prompt: int
    new_tokens: int
    repeats: int
    precision: Precision


# Micro-batches of 3 to 9 thousand tokens: enough to fill an accelerator of 80 GB and up, weights in float32.
ACCELERATOR = Plan(
    training={"smollm2-135m": (16, 350), "qwen1.5-7b": (8, 350), "qwen3-0.6b": (16, 350), "qwen3-4b": (8, 350)},
    decoding=("smollm2-135m", "qwen1.5-7b", "qwen3-0.6b", "qwen3-4b"),
    batches=(8, 32),
    prompt=600,
    new_tokens=32,
    repeats=5,
    precision="bfloat16",
)
REHEARSAL = Plan(
    training={"tiny": (3, 30)}, decoding=("tiny",), batches=(2,), prompt=PREFIX + QUESTION + 20, new_tokens=4,
    repeats=2, precision="float32",
)  # fmt: skip


@dataclass
class Report:
    """What the file holds; `rows` of both kinds, `skipped` with the reason."""

    device: Peaks
    versions: dict[str, str]
    attention: dict[str, str] = field(default_factory=dict)
    training: list[dict[str, Any]] = field(default_factory=list)
    decoding: list[dict[str, Any]] = field(default_factory=list)
    skipped: list[dict[str, str]] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def failed(self) -> list[str]:
        """The cases that ended in an error: engines that disagree on the loss, say."""
        return [one["case"] for one in self.skipped if one["reason"].startswith("failed")]

    def save(self, file: Path | None) -> None:
        """Write it all anew."""
        if file is not None:
            write_json(file, asdict(self))


def bench_gpu(
    *,
    file: Path | None,
    seconds: float,
    shapes: Sequence[str] = (),
    rehearse: bool = False,
    progress: Callable[[str], object] = lambda line: None,
) -> Report:
    """Measure what fits the time.

    Args:
        file: where the report is written after every case.
        seconds: no case is begun, and no further repetition, after so many.
        shapes: of `SHAPES`; none for the plan's.
        rehearse: tiny shapes, whatever the device.

    Raises:
        UserError: there is no accelerator and no rehearsal was asked for, or a shape is unknown.
    """
    started, device = time.monotonic(), usable_device()
    plan = _plan(device, shapes, rehearse)
    deadline = Deadline(seconds)
    report = Report(measure_peaks(device), _versions())
    missing = trl_is_missing()
    if missing is not None:
        report.skipped.append({"case": "training, TRL", "reason": missing})
    tasks: list[tuple[str, Callable[[], Any]]] = [
        (f"training, {shape}", lambda shape=shape: _train(report, plan, shape, device, deadline))  # type: ignore[misc]
        for shape in plan.training
    ]
    tasks += [
        (f"decoding, {shape}, batch {batch}", lambda s=shape, b=batch: _decode(report, plan, s, b, device))  # type: ignore[misc]
        for shape in plan.decoding
        for batch in plan.batches
    ]
    for name, act in tasks:
        reason = f"the {seconds:.0f} s were over" if deadline.left <= 0 else _attempt(act)
        if reason is not None:
            report.skipped.append({"case": name, "reason": reason})
        progress(
            f"{name}: {'measured' if reason is None else f'skipped, {reason}'} ({time.monotonic() - started:.0f} s)"
        )
        report.seconds = round(time.monotonic() - started, 1)
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
    if not shapes:
        return ACCELERATOR
    training = {shape: ACCELERATOR.training.get(shape, (8, 350)) for shape in shapes}
    return Plan(
        training, tuple(shapes), ACCELERATOR.batches, ACCELERATOR.prompt, ACCELERATOR.new_tokens,
        ACCELERATOR.repeats, ACCELERATOR.precision,
    )  # fmt: skip


def _attempt(act: Callable[[], Any]) -> str | None:
    """Why a case could not be measured, or None: the others are measured all the same."""
    try:
        act()
    except torch.OutOfMemoryError:
        return "out of memory"
    except Exception as error:  # whatever a compiler, a driver or a peer's library raises
        return f"failed: {type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
    finally:
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return None


def _train(report: Report, plan: Plan, shape: str, device: torch.device, deadline: Deadline) -> None:
    memory = PeakMemory()
    model = random_model(shape, device).train()
    layout = choose_layout(model, D2ESection(), "shared_batch")
    report.attention[shape] = layout.attention
    samples, context = plan.training[shape]
    others = () if trl_is_missing() else trl_engines(plan.precision)
    cases = list(cases_of(model, [*ENGINES, *others], True, samples, context))
    for repeat in measure(model, cases, layout.attention, plan.precision, memory, plan.repeats):
        if repeat and deadline.left <= 0:
            break
    best = report.device.best_flops
    for case, row in zip(cases, compare(cases, context, samples), strict=True):
        flops = work_of(case.engine, case.rows, case.d2e).flops(model)
        seconds = row.median_ms / 1000
        figures = {
            "shape": shape,
            **asdict(row),
            "precision": plan.precision,
            "timed_steps": len(case.seconds),
            "tflops_per_s": round(flops / seconds / 1e12, 3),
            "model_flop_utilisation": round(flops / seconds / best, 4),
        }
        report.training.append(figures)


def _decode(report: Report, plan: Plan, shape: str, batch: int, device: torch.device) -> None:
    dtype = torch.bfloat16 if plan.precision == "bfloat16" else torch.float32
    model = random_model(shape, device, dtype).eval()
    row = measure_decoding(model, plan.prompt, batch, plan.new_tokens, 2)
    floor = 1000 * _decoding_floor(model, row.prompt, batch, plan.new_tokens, report.device)
    report.decoding.append(
        {
            "shape": shape,
            **asdict(row),
            "dtype": str(dtype).removeprefix("torch."),
            "new_tokens_per_s": round(1000 * batch * plan.new_tokens / row.debiased_ms, 1),
            "roofline_ms": round(floor, 3),
            "debiased_to_roofline": round(row.debiased_ms / floor, 2),
        }
    )


def _decoding_floor(model: Any, prompt: int, batch: int, new_tokens: int, peaks: Peaks) -> float:
    """Seconds that plain decoding takes at least: the prompts' arithmetic, and all weights read a new token."""
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    prompts = Work(batch * prompt, 0, batch * prompt * (prompt + 1) // 2).flops(model) / 3
    return prompts / peaks.best_flops + (new_tokens - 1) * size / peaks.bytes_per_s


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def as_text(report: Report, write: Callable[[Table], str]) -> str:
    """The report as text: the device, a table for training and one for decoding, and the skipped cases.

    Args:
        write: such as `Table.markdown`.
    """
    sheet = report.device.data_sheet_flops
    of = "its data sheet's" if sheet else "measured on a large product"
    lines = [
        f"{report.device.device}: {report.device.best_flops / 1e12:,.1f} TFLOP/s {of}, "
        f"{report.device.bytes_per_s / 1e9:,.0f} GB/s copying; "
        + ", ".join(f"{name} {number}" for name, number in report.versions.items()),
        *([write(_training_table(report.training))] if report.training else []),
        *([write(_decoding_table(report.decoding))] if report.decoding else []),
        *(f"skipped: {one['case']}: {one['reason']}" for one in report.skipped),
        f"{report.seconds:.0f} s in all",
    ]
    return "\n\n".join(lines)


def _training_table(rows: Sequence[dict[str, Any]]) -> Table:
    columns = ("shape", "engine", "ms", "± ms", "tokens/s", "MFU", "/ sft", "/ plain", "/ trl", "peak GB")
    cells = [
        [
            row["shape"], row["engine"] + (", original" if row["view_gradients"] == "original" else ""),
            f"{row['median_ms']:,.0f}",
            f"{row['spread_ms'] / 2:,.0f}", f"{row['view_tokens_per_s']:,.0f}",
            f"{100 * row['model_flop_utilisation']:.1f} %", f"{row['ratio_to_sft']:.2f}",
            f"{row['ratio_to_sft_plain']:.2f}",
            "" if row["ratio_to_trl"] is None else f"{row['ratio_to_trl']:.2f}", f"{row['peak_mb'] / 1024:.1f}",
        ]
        for row in rows
    ]  # fmt: skip
    return Table.of(columns, cells, keys=2)


def _decoding_table(rows: Sequence[dict[str, Any]]) -> Table:
    columns = ("shape", "batch", "plain ms", "debiased ms", "/ plain", "/ guidance", "/ roofline", "same tokens")
    cells = [
        [
            row["shape"], str(row["batch"]), f"{row['plain_ms']:,.0f}", f"{row['debiased_ms']:,.0f}",
            f"{row['debiased_to_plain']:.2f}", f"{row['debiased_to_guidance']:.2f}",
            f"{row['debiased_to_roofline']:.1f}", f"{100 * row['same_tokens']:.0f} %",
        ]
        for row in rows
    ]  # fmt: skip
    return Table.of(columns, cells, keys=2)
