"""The harness of all benches: variants that take turns, what they cost, and the table of their rows.

Variants run one after another in each turn, so other work on the machine affects them equally. Figures are medians.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from d2e_sft.model.device import PeakMemory, frozen_heap, timed
from d2e_sft.model.loading import load_model
from d2e_sft.model.shapes import random_model
from d2e_sft.util.table import Table

Name = TypeVar("Name")
Row = dict[str, Any]


@dataclass(frozen=True)
class Cost:
    """Seconds by the clock, and seconds of all the processor's cores."""

    clock_s: float
    cpu_s: float


@dataclass
class Measurement:
    """A variant's cost in each timed turn, its peak of memory in MB (2²⁰ bytes), and its last result.

    Ratios are of processor time, since other work on a machine changes the clock more; with `by_clock` of the clock's.
    """

    costs: list[Cost] = field(default_factory=list)
    peak_mb: float | None = None
    result: Any = None
    by_clock: bool = False

    @property
    def cost(self) -> Cost:
        """Return the median of each figure."""
        return Cost(
            statistics.median(cost.clock_s for cost in self.costs),
            statistics.median(cost.cpu_s for cost in self.costs),
        )

    @property
    def seconds(self) -> list[float]:
        return [cost.clock_s if self.by_clock else cost.cpu_s for cost in self.costs]

    def ratio_to(self, base: Measurement) -> float:
        """Return the time relative to another variant's, the median over the turns."""
        return statistics.median(a / b for a, b in zip(self.seconds, base.seconds, strict=True))

    def same_as(self, other: Measurement) -> float:
        """Return the share of results that equal another variant's."""
        pairs = zip(self.result, other.result, strict=True)
        return sum(a == b for a, b in pairs) / len(self.result)

    def row(self, bases: Mapping[str, Measurement | None], **facts: Any) -> Row:
        """Return facts and figures as a row; `to_NAME` is the ratio to a base that was measured."""
        cost = self.cost
        return {
            **facts,
            "clock_ms": round(1000 * cost.clock_s, 1),
            "cpu_ms": round(1000 * cost.cpu_s, 1),
            "peak_mb": None if self.peak_mb is None else round(self.peak_mb, 1),
            **{f"to_{name}": round(self.ratio_to(base), 3) for name, base in bases.items() if base is not None},
        }


def in_turns(
    variants: Mapping[Name, Callable[[], Any]],
    repeats: int,
    device: torch.device,
    *,
    prepare: Callable[[Name], object] = lambda name: None,
    memory: Callable[[], PeakMemory] | None = None,
    warm_up: bool = True,
    by_clock: bool = False,
) -> Iterator[dict[Name, Measurement]]:
    """Run the variants in turns, after an untimed one to `warm_up`; yields the measurements so far after each turn.

    `prepare` is called before each run, and does not count. `memory` gives the meter of a variant's first turn; None
    measures no memory. Variants whose work is in other processes are compared `by_clock`.
    """
    measured = {name: Measurement(by_clock=by_clock or device.type != "cpu") for name in variants}
    with frozen_heap():
        for turn in range(repeats + warm_up):
            for name, run in variants.items():
                prepare(name)
                gc.collect()
                meter = memory() if memory is not None and turn == 0 else None
                before = time.process_time()
                measured[name].result, seconds = timed(run, device)
                cost = Cost(seconds, time.process_time() - before)
                if meter is not None:
                    measured[name].peak_mb = meter.peak_mb()
                if turn or not warm_up:
                    measured[name].costs.append(cost)
            yield measured


# Column → field of a row and its format; those of `_NAMES` name a row.
_NAMES = {
    "shape": ("shape", "{}"),
    "case": ("case", "{}"),
    "context": ("context", "{}"),
    "prompt": ("prompt", "{}"),
    "batch": ("batch", "{}"),
    "new": ("new_tokens", "{}"),
    "samples": ("samples", "{:,}"),
    "variant": ("variant", "{}"),
    "view gradients": ("view_gradients", "{}"),
}
_FIGURES = {
    "unrefined": ("unrefined", "{}"),
    "tokens": ("tokens", "{:,}"),
    "ms": ("clock_ms", "{:,.0f}"),
    "± ms": ("half_spread_ms", "{:,.0f}"),
    "CPU ms": ("cpu_ms", "{:,.0f}"),
    "MB": ("peak_mb", "{:,.0f}"),
    "/ sft": ("to_sft", "{:.2f}"),
    "floor": ("floor_ratio", "{:.2f}"),
    "/ sft_plain": ("to_sft_plain", "{:.2f}"),
    "/ trl": ("to_trl", "{:.2f}"),
    "/ plain": ("to_plain", "{:.2f}"),
    "/ guidance": ("to_guidance", "{:.2f}"),
    "/ first": ("to_first", "{:.2f}"),
    "/ roofline": ("to_roofline", "{:.1f}"),
    "samples/s": ("samples_per_s", "{:.2f}"),
    "tokens/s": ("tokens_per_s", "{:,.0f}"),
    "MFU": ("model_flop_utilisation", "{:.1%}"),
    "same answers": ("same", "{:.1%}"),
    "resubmissions": ("resubmissions", "{}"),
}


def rows_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return the rows as a table, without columns that have no value."""
    shown = {
        name: column
        for name, column in {**_NAMES, **_FIGURES}.items()
        if any(row.get(column[0]) is not None for row in rows)
    }
    cells = [["" if row.get(key) is None else form.format(row[key]) for key, form in shown.values()] for row in rows]
    return Table.of(list(shown), cells, keys=max(len(shown.keys() & _NAMES.keys()), 1))


def open_model(name: str, device: torch.device, dtype: str = "float32") -> Any:
    """Return a model on the device: `shape:NAME` for random weights in the shape of a published one."""
    if name.startswith("shape:"):
        return random_model(name.removeprefix("shape:"), device, getattr(torch, dtype))
    return load_model(name, dtype=dtype).model.to(device)
