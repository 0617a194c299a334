"""`d2e bench train`: what a D²E step costs beside plain SFT, engine by engine.

Timed is one micro-batch's forward and backward, collation included, optimiser left out. Engines take turns, so that
whatever else the machine does meets them alike; the figures are medians.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from torch import Tensor

from d2e_sft.bench.engines import ENGINES, SFT, Engine, synthetic_rows, token_floor
from d2e_sft.bench.peak_memory import PeakMemory
from d2e_sft.config.objectives import ViewGradients
from d2e_sft.config.recipe import D2ESection, Precision
from d2e_sft.model.collation import Row
from d2e_sft.model.device import autocast, timed
from d2e_sft.model.loading import load_model
from d2e_sft.model.packing_support import choose_layout
from d2e_sft.util.errors import UserError
from d2e_sft.util.tables import markdown_table


@dataclass(frozen=True)
class Measured:
    """One engine at one context length; ratios compare steps of the same samples, memory counts weights and gradients.

    `floor_ratio` is the ratio of tokens to those of `ratio_to_sft`'s denominator, a token without gradient as a third.
    `ratio_to_sft` compares with the SFT engine that shares as much.
    """

    engine: str
    view_gradients: ViewGradients
    context: int
    samples: int
    tokens: int
    median_ms: float
    ratio_to_sft: float
    ratio_to_sft_plain: float
    floor_ratio: float
    peak_mb: float
    peak_to_sft_plain: float


@dataclass
class _Case:
    engine: Engine
    d2e: D2ESection
    rows: list[Row]
    seconds: list[float]
    peak: float = 0.0
    loss: float = 0.0


def bench_training(
    model_name: str,
    *,
    contexts: Sequence[int],
    samples: int,
    unshared_samples: int,
    repeats: int,
    precision: Precision,
    progress: Callable[[str], object] = lambda line: None,
) -> list[Measured]:
    """Measure every engine at every context length.

    Args:
        samples: of a micro-batch whose samples share their prefix (and of the SFT that it is compared with).
        unshared_samples: of a micro-batch whose samples share nothing; its cost a sample does not depend on it.
        repeats: timed steps of each engine.
        precision: `float32`, or `bfloat16` for mixed precision.

    Raises:
        UserError: the model cannot be packed, or two engines compute different losses.
    """
    # Read before the model is there: memory counts the weights too.
    memory = PeakMemory()
    model = load_model(model_name).model
    layout = choose_layout(model, D2ESection(), "shared_batch")
    model = model.to(memory.device).train()
    measured: list[Measured] = []
    for context in contexts:
        for shared, count in ((True, samples), (False, unshared_samples)):
            cases = list(_cases(model, shared, count, context))
            for repeat in range(repeats + 1):
                for case in cases:
                    _run(model, case, layout.attention, precision, memory if repeat == 0 else None)
                progress(f"context {context}, {count} samples: {repeat} of {repeats}")
            _assert_same_losses(cases, precision)
            measured += _compare(cases, context, count)
    return measured


def _cases(model: Any, shared: bool, samples: int, context: int) -> Iterator[_Case]:
    """The engines that share their samples' prefix or those that do not, with plain SFT in either group."""
    rows = synthetic_rows(samples, context, model.config.get_text_config().vocab_size)
    for engine in ENGINES:
        if engine.name != "sft_plain" and engine.shares_samples != shared:
            continue
        for gradients in get_args(ViewGradients)[: 1 if engine.is_sft else None]:
            d2e = SFT if engine.is_sft else D2ESection(view_gradients=gradients)
            yield _Case(engine, d2e, rows, [])


def _run(model: Any, case: _Case, attention: str, precision: Precision, memory: PeakMemory | None) -> None:
    model.set_attn_implementation(attention if case.engine.packed else "sdpa")
    model.zero_grad(set_to_none=True)
    gc.collect()
    if memory:
        memory.reset()

    def step() -> Tensor:
        with autocast(precision, model.device):
            loss = case.engine.loss(model, case.rows, case.d2e)
        loss.backward()
        return loss

    loss, seconds = timed(step, model.device)
    if memory:  # the first run: memory was given back to the system before it, so its time means nothing
        case.peak = memory.peak_mb()
    else:
        case.seconds.append(seconds)
    case.loss = loss.item()


def _assert_same_losses(cases: Sequence[_Case], precision: Precision) -> None:
    """Engines that are compared must compute the same: a fast wrong one would win."""
    tolerance = 1e-4 if precision == "float32" else 2e-2
    for sft in (True, False):
        losses = {
            (case.engine.name, case.d2e.view_gradients): case.loss for case in cases if case.engine.is_sft == sft
        }
        differ = max(losses.values(), default=0) - min(losses.values(), default=0)
        if not differ <= tolerance * abs(max(losses.values(), default=0)):  # nor is anything equal to NaN
            raise UserError(f"the engines disagree on the loss: {losses}", "report it with this line")


def _compare(cases: Sequence[_Case], context: int, samples: int) -> Iterator[Measured]:
    times = {case.engine.name: statistics.median(case.seconds) for case in cases if case.engine.is_sft}
    floors = {case.engine.name: token_floor(case.engine, samples, context, "all") for case in cases}
    peaks = {case.engine.name: case.peak for case in cases if case.engine.is_sft}
    for case in cases:
        engine, median = case.engine, statistics.median(case.seconds)
        floor = token_floor(engine, samples, context, case.d2e.view_gradients)
        yield Measured(
            engine=engine.name,
            view_gradients=case.d2e.view_gradients,
            context=context,
            samples=samples,
            tokens=round(token_floor(engine, samples, context, "all")),
            median_ms=round(1000 * median, 1),
            ratio_to_sft=round(median / times[engine.baseline], 3),
            ratio_to_sft_plain=round(median / times["sft_plain"], 3),
            floor_ratio=round(floor / floors[engine.baseline], 3),
            peak_mb=round(case.peak, 1),
            peak_to_sft_plain=round(case.peak / peaks["sft_plain"], 3),
        )


def as_table(measured: Sequence[Measured]) -> str:
    """The rows as a Markdown table."""
    columns = (
        "context", "samples", "engine", "view gradients", "tokens", "median ms",
        "/ sft", "floor", "/ sft_plain", "peak MB", "peak / sft_plain",
    )  # fmt: skip
    lines = [
        [
            str(row.context), str(row.samples), row.engine, row.view_gradients, f"{row.tokens:,}",
            f"{row.median_ms:,.0f}", f"{row.ratio_to_sft:.2f}", f"{row.floor_ratio:.2f}",
            f"{row.ratio_to_sft_plain:.2f}", f"{row.peak_mb:,.0f}", f"{row.peak_to_sft_plain:.2f}",
        ]
        for row in measured
    ]  # fmt: skip
    return markdown_table(columns, lines, left=("engine", "view gradients"))
