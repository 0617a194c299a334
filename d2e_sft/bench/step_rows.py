"""The figures of `d2e bench train`: a row per engine, with its ratios, as tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from d2e_sft.bench.engines import Engine, token_floor
from d2e_sft.bench.step_profile import KINDS
from d2e_sft.config.objectives import ViewGradients
from d2e_sft.config.recipe import D2ESection
from d2e_sft.model.collation import Row
from d2e_sft.util.table import Table


@dataclass(frozen=True)
class Measured:
    """One engine at one context length, with None for ratios to engines that were not measured.

    Attributes:
        unrefined: Samples whose refined view is the original one; None for none.
        tokens: Cost in units of a token with gradient.
        ratio_to_sft: Time relative to the SFT engine that shares as many prefixes.
        floor_ratio: The same ratio in tokens, where a token without gradient counts as a third.
        peak_mb: Memory with weights and gradients.
        spread_ms: Slowest minus fastest step.
        view_tokens_per_s: Tokens of all views, each view in full, as logged in training.
        ratio_to_trl: Time relative to TRL without packing.
        time_by_kind: Shares of one further step's time by kind of operation, if a profile was asked for.
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
    unrefined: int | None = None


@dataclass
class Case:
    """An engine, the rows of a micro-batch, and its measurements."""

    engine: Engine
    d2e: D2ESection
    rows: list[Row]
    seconds: list[float]
    peak: float = 0.0
    loss: float = 0.0
    time_by_kind: dict[str, float] | None = None
    cpu: list[float] = field(default_factory=list)  # seconds of the processor


def compare(cases: Sequence[Case], context: int, samples: int) -> Iterator[Measured]:
    """Yield each case's figures, and its ratios to its baselines."""
    times = {case.engine.name: statistics.median(case.seconds) for case in cases}
    equal = sum(row["refined"] == row["original"] for row in cases[0].rows)
    floors = {case.engine.name: token_floor(case.engine, samples, context, "all", unrefined=equal) for case in cases}
    peaks = {case.engine.name: case.peak for case in cases if case.engine.is_sft}
    for case in cases:
        engine, median = case.engine, statistics.median(case.seconds)
        floor = token_floor(engine, samples, context, case.d2e.view_gradients, unrefined=equal)
        answers = ("answer", "rejected") if engine.prefers else ("answer",)
        tokens = sum(
            len(row[view]) + len(row[name]) - 1 for row in case.rows for view in case.d2e.views for name in answers
        )
        yield Measured(
            engine=engine.name,
            view_gradients=case.d2e.view_gradients,
            context=context,
            samples=samples,
            tokens=round(floors[engine.name]),
            median_ms=round(1000 * median, 1),
            ratio_to_sft=round(median / times[engine.baseline], 3),
            ratio_to_sft_plain=round(median / times["sft_plain"], 3) if "sft_plain" in times else None,
            floor_ratio=round(floor / floors[engine.baseline], 3),
            peak_mb=round(case.peak, 1),
            peak_to_sft_plain=round(case.peak / peaks["sft_plain"], 3) if "sft_plain" in peaks else None,
            spread_ms=round(1000 * (max(case.seconds) - min(case.seconds)), 1),
            ms_a_sample=round(1000 * median / samples, 1),
            view_tokens_per_s=round(tokens / median, 1),
            ratio_to_trl=round(median / times["trl"], 3) if "trl" in times else None,
            time_by_kind=case.time_by_kind,
            unrefined=equal or None,
        )


_COLUMNS = {
    "context": ("context", "{}"),
    "samples": ("samples", "{}"),
    "engine": ("engine", "{}"),
    "view gradients": ("view_gradients", "{}"),
    "unrefined": ("unrefined", "{}"),
    "tokens": ("tokens", "{:,}"),
    "median ms": ("median_ms", "{:,.0f}"),
    "/ sft": ("ratio_to_sft", "{:.2f}"),
    "floor": ("floor_ratio", "{:.2f}"),
    "/ sft_plain": ("ratio_to_sft_plain", "{:.2f}"),
    "peak MB": ("peak_mb", "{:,.0f}"),
    "peak / sft_plain": ("peak_to_sft_plain", "{:.2f}"),
    "/ trl": ("ratio_to_trl", "{:.2f}"),
}


def as_table(measured: Sequence[Measured]) -> Table:
    """The rows as a table."""
    return fields_table(_COLUMNS, [vars(row) for row in measured], keys=4)


def profile_table(measured: Sequence[Measured]) -> Table:
    """Percent of a step's time by kind of operation, a column for each profiled row."""
    columns = ["percent of", *(f"{row.engine}, {row.view_gradients}, {row.context}" for row in measured)]
    profiles = [row.time_by_kind for row in measured if row.time_by_kind is not None]
    lines = [[kind, *(f"{100 * by_kind[kind]:.1f}" for by_kind in profiles)] for kind in KINDS]
    return Table.of(columns, lines)


Columns = Mapping[str, tuple[str, str]]  # name → field of a row and its format, such as ("plain_ms", "{:,.0f}")


def fields_table(columns: Columns, rows: Sequence[Mapping[str, Any]], *, keys: int = 1) -> Table:
    """Return the rows as a table, without columns that have no value."""
    shown = {name: own for name, own in columns.items() if any(row[own[0]] is not None for row in rows)}
    cells = [["" if row[key] is None else form.format(row[key]) for key, form in shown.values()] for row in rows]
    return Table.of(list(shown), cells, keys=keys)
