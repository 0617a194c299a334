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

from d2e_sft.bench.engines import ENGINES, SFT, Engine, synthetic_rows, token_floor, view_tokens
from d2e_sft.bench.step_profile import KINDS, time_by_kind
from d2e_sft.bench.trl_peer import trl_engines
from d2e_sft.config.objectives import ViewGradients
from d2e_sft.config.recipe import D2ESection, Precision
from d2e_sft.model.collation import Row
from d2e_sft.model.device import autocast, frozen_heap, timed
from d2e_sft.model.loading import load_model
from d2e_sft.model.packing_support import choose_layout
from d2e_sft.model.peak_memory import PeakMemory
from d2e_sft.util.errors import UserError, did_you_mean
from d2e_sft.util.table import Table


@dataclass(frozen=True)
class Measured:
    """One engine at one context length; ratios compare steps of the same samples, memory counts weights and gradients.

    `floor_ratio` is the ratio of tokens to those of `ratio_to_sft`'s denominator, a token without gradient as a third.
    `ratio_to_sft` compares with the SFT engine that shares as much, `ratio_to_trl` with TRL's without packing, where
    that was measured. `spread_ms` is the slowest step less the fastest. `view_tokens_per_s` counts the tokens of all
    views, each view whole, as a training's log does. A ratio to what was not measured is None. `time_by_kind` has the
    shares of one further step's time by kind of operation, where a profile was asked for.
    """

    engine: str
    view_gradients: ViewGradients
    context: int
    samples: int
    tokens: int
    median_ms: float
    ratio_to_sft: float
    ratio_to_sft_plain: float | None
    floor_ratio: float
    peak_mb: float
    peak_to_sft_plain: float | None
    spread_ms: float
    ms_a_sample: float
    view_tokens_per_s: float
    ratio_to_trl: float | None
    time_by_kind: dict[str, float] | None = None


@dataclass
class Case:
    """An engine on the rows of a micro-batch, and what was measured of it."""

    engine: Engine
    d2e: D2ESection
    rows: list[Row]
    seconds: list[float]
    peak: float = 0.0
    loss: float = 0.0
    time_by_kind: dict[str, float] | None = None


def bench_training(
    model_name: str,
    *,
    contexts: Sequence[int],
    samples: int,
    unshared_samples: int,
    repeats: int,
    precision: Precision,
    trl: bool = False,
    only: Sequence[str] = (),
    profile: bool = False,
    progress: Callable[[str], object] = lambda line: None,
) -> list[Measured]:
    """Measure every engine at every context length.

    Args:
        samples: of a micro-batch whose samples share their prefix (and of the SFT that it is compared with).
        unshared_samples: of a micro-batch whose samples share nothing; its cost a sample does not depend on it.
        repeats: timed steps of each engine.
        precision: `float32`, or `bfloat16` for mixed precision.
        trl: TRL's SFTTrainer too.
        only: names of engines, for these and the SFT that each is compared with; none for all.
        profile: one further step of each engine, under torch's profiler.

    Raises:
        UserError: the model cannot be packed, two engines compute different losses, TRL is not installed, or an engine
            is unknown.
    """
    engines = chosen([*ENGINES, *(trl_engines(precision) if trl else ())], only)
    # Read before the model is there: memory counts the weights too.
    memory = PeakMemory()
    model = load_model(model_name).model
    layout = choose_layout(model, D2ESection(), "shared_batch")
    model = model.to(memory.device).train()
    measured: list[Measured] = []
    for context in contexts:
        for shared, count in ((True, samples), (False, unshared_samples)):
            if not any(engine.shares_samples == shared and not engine.elsewhere for engine in engines):
                continue
            cases = list(cases_of(model, engines, shared, count, context))
            for repeat in measure(model, cases, layout.attention, precision, memory, repeats):
                progress(f"context {context}, {count} samples: {repeat} of {repeats}")
            if profile:
                for case in cases:
                    case.time_by_kind = time_by_kind(_step(model, case, layout.attention, precision), model.device)
            measured += compare(cases, context, count)
    return measured


def chosen(engines: Sequence[Engine], only: Sequence[str]) -> list[Engine]:
    """The engines of these names and their baselines, in their order; all where no name is given.

    Raises:
        UserError: a name that no engine has.
    """
    by_name = {engine.name: engine for engine in engines}
    for name in only:
        if name not in by_name:
            raise UserError(
                f"--engines {name}: expected names among {', '.join(by_name)}.{did_you_mean(name, by_name)}",
                "see d2e bench train --help; trl and trl_packed need --trl",
            )
    wanted = {*only, *(by_name[name].baseline for name in only)} or by_name.keys()
    return [engine for engine in engines if engine.name in wanted]


def cases_of(model: Any, engines: Sequence[Engine], shared: bool, samples: int, context: int) -> Iterator[Case]:
    """The engines that share their samples' prefix or those that do not, with other libraries' in either group."""
    rows = synthetic_rows(samples, context, model.config.get_text_config().vocab_size)
    for engine in engines:
        if not engine.elsewhere and engine.shares_samples != shared:
            continue
        for gradients in get_args(ViewGradients)[: 1 if engine.is_sft else None]:
            d2e = SFT if engine.is_sft else D2ESection(view_gradients=gradients)
            yield Case(engine, d2e, rows, [])


def measure(
    model: Any, cases: Sequence[Case], attention: str, precision: Precision, memory: PeakMemory, repeats: int
) -> Iterator[int]:
    """Run the cases in turns, a first time for their memory and then `repeats` times for their time; yields each turn.

    Raises:
        UserError: two engines compute different losses.
    """
    for case in cases:
        if case.engine.prepare is not None:
            case.engine.prepare(model, case.rows)
    with frozen_heap():
        for repeat in range(repeats + 1):
            for case in cases:
                _run(model, case, attention, precision, memory if repeat == 0 else None)
            if repeat == 0:
                _assert_same_losses(cases, precision)
            yield repeat


def _step(model: Any, case: Case, attention: str, precision: Precision) -> Callable[[], Tensor]:
    """A case's forward and backward, ready to run on gradients of none."""
    model.set_attn_implementation(attention if case.engine.packed else "sdpa")
    model.zero_grad(set_to_none=True)
    gc.collect()

    def step() -> Tensor:
        with autocast(precision, model.device):
            loss = case.engine.loss(model, case.rows, case.d2e)
        loss.backward()
        return loss

    return step


def _run(model: Any, case: Case, attention: str, precision: Precision, memory: PeakMemory | None) -> None:
    step = _step(model, case, attention, precision)
    if memory:
        memory.reset()
    loss, seconds = timed(step, model.device)
    if memory:  # the first run: memory was given back to the system before it, so its time means nothing
        case.peak = memory.peak_mb()
    else:
        case.seconds.append(seconds)
    case.loss = loss.item()


def _assert_same_losses(cases: Sequence[Case], precision: Precision) -> None:
    """Engines that are compared must compute the same: a fast wrong one would win."""
    tolerance = 1e-4 if precision == "float32" else 2e-2
    for sft in (True, False):
        losses = {
            (case.engine.name, case.d2e.view_gradients): case.loss for case in cases if case.engine.is_sft == sft
        }
        differ = max(losses.values(), default=0) - min(losses.values(), default=0)
        if not differ <= tolerance * abs(max(losses.values(), default=0)):  # nor is anything equal to NaN
            raise UserError(f"the engines disagree on the loss: {losses}", "report it with this line")


def compare(cases: Sequence[Case], context: int, samples: int) -> Iterator[Measured]:
    """Each case's figures, and its ratios to those that it is compared with."""
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
            ratio_to_sft_plain=round(median / times["sft_plain"], 3) if "sft_plain" in times else None,
            floor_ratio=round(floor / floors[engine.baseline], 3),
            peak_mb=round(case.peak, 1),
            peak_to_sft_plain=round(case.peak / peaks["sft_plain"], 3) if "sft_plain" in peaks else None,
            spread_ms=round(1000 * (max(case.seconds) - min(case.seconds)), 1),
            ms_a_sample=round(1000 * median / samples, 1),
            view_tokens_per_s=round(samples * view_tokens(case.d2e.views, context) / median, 1),
            ratio_to_trl=round(median / times["trl"], 3) if "trl" in times else None,
            time_by_kind=case.time_by_kind,
        )


def as_table(measured: Sequence[Measured]) -> Table:
    """The rows as a table."""
    with_trl = any(row.ratio_to_trl is not None for row in measured)
    columns = (
        "context", "samples", "engine", "view gradients", "tokens", "median ms",
        "/ sft", "floor", "/ sft_plain", "peak MB", "peak / sft_plain", *(["/ trl"] if with_trl else []),
    )  # fmt: skip
    lines = [
        [
            str(row.context), str(row.samples), row.engine, row.view_gradients, f"{row.tokens:,}",
            f"{row.median_ms:,.0f}", f"{row.ratio_to_sft:.2f}", f"{row.floor_ratio:.2f}",
            _ratio(row.ratio_to_sft_plain), f"{row.peak_mb:,.0f}", _ratio(row.peak_to_sft_plain),
            *([_ratio(row.ratio_to_trl)] if with_trl else []),
        ]
        for row in measured
    ]  # fmt: skip
    return Table.of(columns, lines, keys=4)


def profile_table(measured: Sequence[Measured]) -> Table:
    """Percent of a step's time by kind of operation, a column for each profiled row."""
    columns = ["percent of", *(f"{row.engine}, {row.view_gradients}, {row.context}" for row in measured)]
    profiles = [row.time_by_kind for row in measured if row.time_by_kind is not None]
    lines = [[kind, *(f"{100 * by_kind[kind]:.1f}" for by_kind in profiles)] for kind in KINDS]
    return Table.of(columns, lines)


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
