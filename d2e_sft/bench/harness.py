"""The harness of all benches: variants that take turns, what they cost, and the report of several cases.

Variants run one after another in each turn, so other work on the machine affects them equally. Figures are medians.
"""

from __future__ import annotations

import gc
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import torch

from d2e_sft.model.device import PeakMemory, frozen_heap, timed
from d2e_sft.model.loading import load_model
from d2e_sft.model.shapes import random_model
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import write_json
from d2e_sft.util.table import Table
from d2e_sft.util.terminal import say

Name = TypeVar("Name")
Row = dict[str, Any]
Columns = Mapping[str, tuple[str, str]]
_PAUSE = 0.02  # seconds between two looks at a process's memory


@dataclass(frozen=True)
class Cost:
    """Seconds by the clock, seconds of all the processor's cores, and the peak of memory in MB (2²⁰ bytes)."""

    clock_s: float
    cpu_s: float
    peak_mb: float | None = None


@dataclass
class Measurement:
    """A variant's cost in each timed turn, its peak of memory, and its last result.

    Ratios are of processor time, since other work on a machine changes the clock more; with `by_clock` of the clock's.
    """

    costs: list[Cost] = field(default_factory=list)
    peak_mb: float | None = None
    result: Any = None
    by_clock: bool = False

    @property
    def cost(self) -> Cost:
        """Return the median of each figure."""
        peaks = [cost.peak_mb for cost in self.costs if cost.peak_mb is not None]
        peak = statistics.median(peaks) if peaks else self.peak_mb
        return Cost(
            statistics.median(cost.clock_s for cost in self.costs),
            statistics.median(cost.cpu_s for cost in self.costs),
            peak,
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
            "peak_mb": None if cost.peak_mb is None else round(cost.peak_mb, 1),
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

    A variant that returns a `Cost` has measured itself. `prepare` is called before each run, and does not count.
    `memory` gives the meter of a variant's first turn; None measures no memory. Variants whose work
    is in other processes are compared `by_clock`.
    """
    measured = {name: Measurement(by_clock=by_clock or device.type != "cpu") for name in variants}
    with frozen_heap():
        for turn in range(repeats + warm_up):
            for name, run in variants.items():
                prepare(name)
                gc.collect()
                meter = memory() if memory is not None and turn == 0 else None
                before = time.process_time()
                result, seconds = timed(run, device)
                cost = result if isinstance(result, Cost) else Cost(seconds, time.process_time() - before)
                measured[name].result = result
                if meter is not None:
                    measured[name].peak_mb = meter.peak_mb()
                if turn or not warm_up:
                    measured[name].costs.append(cost)
            yield measured


def cost_of_process(command: Sequence[str]) -> Cost:
    """Run a command as a process of its own, with its peak of memory; UserError if it fails.

    The kernel's own peak (`ru_maxrss`) starts with that of this process, so the process is watched instead.
    """
    peak, started = 0, time.perf_counter()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        while not (ended := os.wait4(process.pid, os.WNOHANG))[0]:
            peak = max(peak, _peak_of(process.pid))
            time.sleep(_PAUSE)
        seconds = time.perf_counter() - started
        _, status, usage = ended
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            output.seek(0)
            last = output.read().decode(errors="replace").strip().splitlines()[-3:]
            raise UserError(f"{' '.join(command)} exited with {process.returncode}: {' / '.join(last)}")
    return Cost(seconds, usage.ru_utime + usage.ru_stime, peak / 1024)


def _peak_of(process: int) -> int:
    """Return the peak in kB; 0 where the system does not tell."""
    try:
        with open(f"/proc/{process}/status", encoding="ascii", errors="replace") as lines:
            return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)
    except OSError:
        return 0


# Column → field of a row and its format; the first ones name a row.
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


def rows_table(
    rows: Sequence[Mapping[str, Any]], columns: Columns | None = None, *, notes: Sequence[str] = ()
) -> Table:
    """Return the rows as a table, without columns that have no value; None takes the columns of all benches."""
    shown = {
        name: column
        for name, column in ({**_NAMES, **_FIGURES} if columns is None else columns).items()
        if any(row.get(column[0]) is not None for row in rows)
    }
    cells = [["" if row.get(key) is None else form.format(row[key]) for key, form in shown.values()] for row in rows]
    return Table.of(list(shown), cells, notes=notes, keys=max(len(shown.keys() & _NAMES.keys()), 1))


@dataclass
class Report:
    """The rows of several cases, as a file.

    `facts` are what the figures depend on, such as the machine; `skipped` says why a case was not measured.
    """

    facts: dict[str, Any]
    date: str = ""
    rows: dict[str, list[Row]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def failed(self) -> list[str]:
        """Return the cases that ended in an error, such as engines that disagree on the loss."""
        return [case for case, reason in self.skipped.items() if reason.startswith("failed")]

    def measure(
        self, cases: Mapping[str, Callable[[], Iterable[Row]]], seconds: float, file: Path | None = None
    ) -> None:
        """Measure the cases that have no rows yet, and write the file after each; no case starts after `seconds`."""
        started, before = time.monotonic(), self.seconds
        for name, case in cases.items():
            if name in self.rows:
                continue
            is_over = time.monotonic() - started >= seconds
            outcome = f"the {seconds:.0f} s were over" if is_over else attempt(case)
            self.seconds = round(before + time.monotonic() - started, 1)
            self.date = datetime.now(UTC).date().isoformat()
            if isinstance(outcome, str):
                self.skipped[name] = outcome
            else:
                self.rows[name] = outcome
                self.skipped.pop(name, None)
            say(f"{name}: {self.skipped.get(name, 'measured')} ({self.seconds:.0f} s)", err=True)
            if file is not None:
                write_json(file, asdict(self))


def attempt(case: Callable[[], Iterable[Row]]) -> list[Row] | str:
    """Return a case's rows, or why it could not be measured."""
    try:
        return list(case())
    except torch.OutOfMemoryError:
        return "out of memory"
    except Exception as error:  # a compiler, a driver or another library may raise anything
        return f"failed: {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    finally:
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def open_model(name: str, device: torch.device, dtype: str = "float32") -> Any:
    """Return a model on the device: `shape:NAME` for random weights in the shape of a published one."""
    if name.startswith("shape:"):
        return random_model(name.removeprefix("shape:"), device, getattr(torch, dtype))
    return load_model(name, dtype=dtype).model.to(device)


def versions(*packages: str) -> dict[str, str]:
    """Return the versions of those packages that are installed."""
    return {name: version(name) for name in packages if find_spec(name) is not None}
