"""The most memory that a stretch of code holds: of the device, or of this process where there is none."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import torch

from d2e_sft.model.device import usable_device
from d2e_sft.util.errors import UserError

_MB = 2**20


class PeakMemory:
    """Peaks above what the process held when this was made, in MB (2²⁰ bytes).

    On CUDA the allocator's own figures; on the CPU of a Linux machine the resident set of the process.

    Raises:
        UserError: neither is there.
    """

    def __init__(self) -> None:
        self.device = usable_device()
        if self.device.type not in ("cuda", "cpu") or (self.device.type == "cpu" and sys.platform != "linux"):
            raise UserError(f"memory cannot be measured on {self.device.type} under {sys.platform}")
        self.reset()
        self._start = 0 if self.device.type == "cuda" else _status("VmRSS")

    def reset(self) -> None:
        """Forget the peak so far; memory that is free but kept is given back first."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            return
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # proc(5): resets the peak resident set

    def peak_mb(self) -> float:
        """The peak since `reset`."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated() / _MB
        return (_status("VmHWM") - self._start) / _MB


def _status(name: str) -> int:
    """A line of /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise UserError(f"/proc/self/status has no {name}")
