"""Devices, and the precisions they compute in, tested by multiplying instead of asking the library."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from d2e_sft.doctor.finding import Finding
from d2e_sft.model.device import automatic_dtype, usable_device

_FAST = ("avx2", "avx512f", "avx512_bf16", "amx_tile", "amx_bf16")
_SIDE = 256
_REPEATS = 5
# Allowed error of a product of random matrices, relative to its norm; half precision rounds each factor.
_TOLERANCE = {"bfloat16": 2e-2, "float16": 5e-3}


def check_devices() -> Iterator[Finding]:
    """Report each accelerator with its memory, and the CPU with cores and threads."""
    if torch.cuda.is_available():
        yield from (_cuda(index) for index in range(torch.cuda.device_count()))
    elif torch.accelerator.is_available():
        accelerator = torch.accelerator.current_accelerator()
        yield Finding("accelerator", "ok", str(accelerator))
    else:
        yield _no_accelerator()
    yield _cpu()
    yield _threads()


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cuda(index: int) -> Finding:
    properties = torch.cuda.get_device_properties(index)
    capability = f"{properties.major}.{properties.minor}"
    free, total = torch.cuda.mem_get_info(index)
    text = f"{properties.name}, {total / 2**30:.0f} GiB, compute capability {capability}"
    if free < total / 2:
        return Finding(
            f"cuda:{index}",
            "warn",
            f"{text}; only {free / 2**30:.1f} GiB free",
            "see what uses it: nvidia-smi",
        )
    return Finding(f"cuda:{index}", "ok", text)


def _no_accelerator() -> Finding:
    if Path("/proc/driver/nvidia/version").exists():
        build = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "a CPU build"
        return Finding(
            "accelerator",
            "warn",
            f"NVIDIA's driver is loaded, but torch {torch.__version__} ({build}) finds no device",
            "install the torch build for your driver (https://pytorch.org/get-started), and look at "
            f"CUDA_VISIBLE_DEVICES (now {os.environ.get('CUDA_VISIBLE_DEVICES', 'not set')})",
        )
    return Finding("accelerator", "warn", "none", "small models train on the CPU; for others use a machine with a GPU")


def _cpu() -> Finding:
    model, flags = _cpu_info()
    fast = [flag.upper() for flag in _FAST if flag in flags]
    has = ", ".join(fast) if fast else "no AVX2, AVX-512 or AMX found"
    return Finding("cpu", "ok", f"{model}, {usable_cores()} of {os.cpu_count()} cores usable; {has}")


def _threads() -> Finding:
    threads, cores = torch.get_num_threads(), usable_cores()
    text = f"torch computes with {threads}"
    if threads > cores:
        return Finding("threads", "warn", f"{text}, on {cores} cores", f"export OMP_NUM_THREADS={cores}")
    return Finding("threads", "ok", text)


def _cpu_info() -> tuple[str, set[str]]:
    """Return the name and the flags, which are known only on Linux."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine(), set()
    fields = dict(
        reversed([(key.strip(), value.strip()) for key, _, value in (line.partition(":") for line in lines)])
    )
    flags = fields.get("flags", fields.get("Features", ""))
    return fields.get("model name", platform.machine()), set(flags.split())


def check_precisions() -> Iterator[Finding]:
    """Compare bfloat16 and float16 on the device of training with float32 on the CPU."""
    device = usable_device()
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(_SIDE, _SIDE, generator=generator) for _ in range(2))
    expected = left @ right
    seconds = _seconds(left.to(device), right.to(device))
    for name in ("bfloat16", "float16"):
        yield _half(name, left, right, expected, device, seconds)


def _half(
    name: str, left: torch.Tensor, right: torch.Tensor, expected: torch.Tensor, device: torch.device, float32: float
) -> Finding:
    dtype = getattr(torch, name)
    instead = "use train.bf16=null or float32"
    try:
        a, b = left.to(device, dtype), right.to(device, dtype)
        error = _error(a @ b, expected)
        ratio = float32 / _seconds(a, b)
    except RuntimeError as failure:  # no kernel on this device
        return Finding(name, "warn", f"not on {device.type} ({str(failure).splitlines()[0]})", instead)
    if error > _TOLERANCE[name]:
        return Finding(name, "warn", f"wrong by {error:.0e} on {device.type}", instead)
    if name == "bfloat16" and device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        return Finding(name, "warn", "emulated by this GPU, so training rejects it", "use float16 or float32")
    text = f"works on {device.type}"
    if device.type == "cpu":  # on a GPU so small a product measures the kernel launch
        text += f", {_against_float32(ratio)} ({_SIDE} × {_SIDE})"
    if name == "float16" and device.type != "cuda":
        return Finding(name, "ok", f"{text}; train.fp16=true needs CUDA")
    if name == "bfloat16":
        text += f"; train.bf16=null uses {automatic_dtype()}"
    return Finding(name, "ok", text)


def _against_float32(ratio: float) -> str:
    """Describe a speed ratio; an emulated precision is many times slower."""
    return f"{ratio:.1f} × as fast as float32" if ratio >= 1 else f"{1 / ratio:.1f} × slower than float32"


def _error(product: torch.Tensor, expected: torch.Tensor) -> float:
    return float((product.float().cpu() - expected).norm() / expected.norm())


def _seconds(a: torch.Tensor, b: torch.Tensor) -> float:
    """Return the fastest time of a few products, after a warm-up."""
    taken = []
    for _ in range(_REPEATS + 1):
        started = time.perf_counter()
        _ = a @ b
        if a.device.type != "cpu":
            torch.accelerator.synchronize()
        taken.append(time.perf_counter() - started)
    return max(min(taken[1:]), 1e-9)
