"""The device of this process: its precision, clock and memory."""

import ctypes
import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch

from d2e_sft.config.recipe import Precision
from d2e_sft.util.errors import UserError

Result = TypeVar("Result")
_MB = 2**20
_CUDNN_LOCK = threading.Lock()
_CUDNN_FOUND: list[bool] = []  # the setting before each block that runs


def usable_device() -> torch.device:
    """Return the accelerator that torch finds (CUDA, MPS, XPU, …), or the CPU."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return accelerator or torch.device("cpu")


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[Any]:
    """Return the context of mixed precision as the trainer uses it."""
    if precision not in ("bfloat16", "float16"):
        return nullcontext()
    return torch.autocast(device.type, getattr(torch, precision))


@contextmanager
def without_cudnn_attention() -> Iterator[None]:
    """Keep torch from choosing cuDNN's attention, which gave NaN on padded rows in bfloat16 (torch 2.11, one H100).

    The setting is the whole process's. Of blocks in several threads the last to end restores what the first found.
    """
    with _CUDNN_LOCK:
        _CUDNN_FOUND.append(torch.backends.cuda.cudnn_sdp_enabled())
        torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        with _CUDNN_LOCK:
            first, *later = _CUDNN_FOUND
            _CUDNN_FOUND.pop()
            if not later:
                torch.backends.cuda.enable_cudnn_sdp(first)


def automatic_dtype() -> Literal["bfloat16", "float32"]:
    """Return the dtype that `auto` means on this machine: bfloat16 if its hardware multiplies it, else float32."""
    return "bfloat16" if has_bfloat16() else "float32"


def has_bfloat16(cuda_only: bool = False) -> bool:
    """Whether a CUDA device or (unless `cuda_only`) a CPU computes in bfloat16 natively and fast."""
    if torch.cuda.is_available():
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return not cuda_only and not torch.accelerator.is_available() and cpu_has_bfloat16()


def cpu_has_bfloat16() -> bool:
    """Whether this CPU multiplies bfloat16 in hardware: AVX512-BF16, AMX-BF16, or Arm's BF16.

    Emulation takes 3 to 100 times as long as float32. The hardware decides, not a clock: a busy machine chooses as an
    idle one does. A torch that cannot name the hardware's capabilities gives no.
    """
    capabilities: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def total_memory(device: torch.device) -> int:
    """Return the bytes of memory of a device; on the CPU those of the machine, or of the container if it has less."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    import psutil

    total = int(psutil.virtual_memory().total)
    try:
        return min(total, int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    except (OSError, ValueError):  # no container, or one without a limit
        return total


def timed(act: Callable[[], Result], device: torch.device) -> tuple[Result, float]:
    """Return the result of a call and its seconds on the device."""
    synchronize = torch.accelerator.synchronize if device.type != "cpu" else lambda: None
    synchronize()
    start = time.perf_counter()
    result = act()
    synchronize()
    return result, time.perf_counter() - start


def unslowed_seconds(act: Callable[[], object], device: torch.device) -> tuple[float, float]:
    """Return a call's seconds on the device, on the CPU without waiting for other programs, and those of the clock.

    On the CPU the first is the larger of two processor times: this thread's, and the process's divided by torch's
    threads. Neither exceeds the clock's time. Threads that wait for one without a processor still take some of it.
    """
    thread, process = time.thread_time(), time.process_time()
    _, clock = timed(act, device)
    if device.type != "cpu":
        return clock, clock
    return max(time.thread_time() - thread, (time.process_time() - process) / torch.get_num_threads()), clock


@contextmanager
def frozen_heap() -> Iterator[None]:
    """Exclude existing objects from garbage collection, which would take longer than a small step that is measured."""
    frozen_before = gc.get_freeze_count() > 0
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        if not frozen_before:
            gc.unfreeze()


class LapTimer:
    """Measures the share of each part of a loop: in device time on CUDA, in wall time elsewhere.

    On CUDA, host work that the device does not wait for counts as nothing.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._marks: list[tuple[str, Any]] = []

    def enter(self, part: str) -> None:
        """Attribute the time until the next call to `part`."""
        if self._cuda:
            mark: Any = torch.cuda.Event(enable_timing=True)
            mark.record()
        else:
            mark = time.perf_counter()
        self._marks.append((part, mark))

    def shares(self) -> dict[str, float]:
        """Return the share of each part since the first `enter` or the last call of this; they add up to 1."""
        if not self._marks:
            return {}
        self.enter(self._marks[-1][0])
        if self._cuda:
            self._marks[-1][1].synchronize()
        seconds: dict[str, float] = dict.fromkeys((part for part, _ in self._marks), 0.0)
        for (part, start), (_, end) in pairwise(self._marks):
            seconds[part] += start.elapsed_time(end) if self._cuda else end - start
        del self._marks[:-1]
        total = sum(seconds.values())
        return {part: value / total for part, value in seconds.items()} if total else {}


class PeakMemory:
    """Measures peaks in MB (2²⁰ bytes), on the CPU above the memory held when this object is made.

    Uses the allocator's figures on CUDA, and the process's resident set on Linux; UserError elsewhere.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device or usable_device()
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


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, on an accelerator or on the CPU, where torch raises RuntimeError."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    text = str(error).lower()
    marks = ("out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory", "alloc_failed")
    return isinstance(error, RuntimeError) and any(mark in text for mark in marks)


def is_device_error(error: BaseException) -> bool:
    """Whether an accelerator failed, so that what it computes afterwards is not to be trusted."""
    marks = ("cuda error", "cudnn error", "hip error", "cublas", "mps backend", "device-side assert")
    return isinstance(error, torch.AcceleratorError) or any(mark in str(error).lower() for mark in marks)
