"""The peak memory of the device, or of this process on the CPU."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import torch

from d2e_sft.model.device import usable_device
from d2e_sft.util.errors import UserError

_MB = 2**20


class PeakMemory:
    """Measures peaks in MB (2²⁰ bytes), on the CPU above the memory held when this object is made.

    Uses the allocator's figures on CUDA, and the resident set of the process on the CPU under Linux.

    Raises:
        UserError: on any other device or system.
    """

    def __init__(self) -> None:
        self.device = usable_device()
        if self.device.type not in ("cuda", "cpu") or (self.device.type == "cpu" and sys.platform != "linux"):
            raise UserError(f"memory cannot be measured on {self.device.type} under {sys.platform}")
        self.reset()
        self._start = 0 if self.device.type == "cuda" else _status("VmRSS")

    def reset(self) -> None:
        """Release cached memory and forget the peak so far."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            return
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # proc(5): resets the peak resident set

    def peak_mb(self) -> float:
        """Return the peak since `reset`."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated() / _MB
        return (_status("VmHWM") - self._start) / _MB


def _status(name: str) -> int:
    """Return an entry of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))
