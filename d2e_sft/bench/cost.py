"""The cost of a run: seconds by the clock, processor time, and memory; ways that take turns."""

from __future__ import annotations

import gc
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch

from d2e_sft.model.device import PeakMemory, frozen_heap, timed
from d2e_sft.util.errors import UserError

Result = TypeVar("Result")
_PAUSE = 0.02  # seconds between two looks at a process's memory


@dataclass(frozen=True)
class Cost:
    """Seconds by the clock, seconds of all the processor's cores, and the peak of memory in MB (2²⁰ bytes)."""

    clock_s: float
    cpu_s: float
    peak_mb: float | None = None


def cost_of(act: Callable[[], Result], device: torch.device) -> tuple[Result, Cost]:
    """Run `act` in this process; returns its result and its time."""
    before = time.process_time()
    result, seconds = timed(act, device)
    return result, Cost(seconds, time.process_time() - before)


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
    """Return the peak of a running process in kB; 0 where the system does not tell."""
    try:
        with open(f"/proc/{process}/status", encoding="ascii", errors="replace") as lines:
            return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)
    except OSError:
        return 0


def take_turns(
    ways: Mapping[str, Callable[[], Any]],
    repeats: int,
    device: torch.device,
    *,
    warm_up: bool = True,
    with_memory: bool = False,
) -> tuple[dict[str, list[Cost]], dict[str, Any]]:
    """Run the ways in turns; returns the costs of each and its last result.

    The warm-up is one more turn, which is not timed. `with_memory` it gives the peak above what was in memory before.
    A way that returns a `Cost` has measured itself.
    """
    costs: dict[str, list[Cost]] = {name: [] for name in ways}
    peaks: dict[str, float] = {}
    results: dict[str, Any] = {}
    with frozen_heap():
        for turn in range(repeats + warm_up):
            for name, act in ways.items():
                gc.collect()
                memory = PeakMemory() if turn == 0 and with_memory else None
                results[name], cost = cost_of(act, device)
                if memory is not None:
                    peaks[name] = memory.peak_mb()
                if turn or not warm_up:
                    own = results[name] if isinstance(results[name], Cost) else replace(cost, peak_mb=peaks.get(name))
                    costs[name].append(own)
    return costs, results


def median(costs: Sequence[Cost]) -> Cost:
    """Return the median of each figure."""
    peaks = [cost.peak_mb for cost in costs if cost.peak_mb is not None]
    return Cost(
        statistics.median(cost.clock_s for cost in costs),
        statistics.median(cost.cpu_s for cost in costs),
        statistics.median(peaks) if peaks else None,
    )


def share_of_equals(one: Sequence[Any], other: Sequence[Any]) -> float:
    """Return the share of results that are equal."""
    return sum(a == b for a, b in zip(one, other, strict=True)) / len(one)
