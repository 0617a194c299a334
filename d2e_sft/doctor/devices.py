"""Which devices there are: CUDA or another accelerator, and the CPU with what it multiplies fast in."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from pathlib import Path

import torch

from d2e_sft.doctor.finding import Finding

_TOPIC = "devices"
_FAST = ("avx2", "avx512f", "avx512_bf16", "amx_tile", "amx_bf16")


def check_devices() -> Iterator[Finding]:
    """Each accelerator with its memory, and the CPU with cores and threads."""
    if torch.cuda.is_available():
        yield from (_cuda(index) for index in range(torch.cuda.device_count()))
    elif torch.accelerator.is_available():
        accelerator = torch.accelerator.current_accelerator()
        yield Finding(_TOPIC, "accelerator", "ok", str(accelerator))
    else:
        yield _no_accelerator()
    yield _cpu()
    yield _threads()


def usable_cores() -> int:
    """Cores that this process may run on: a scheduler or a container may give fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cuda(index: int) -> Finding:
    properties = torch.cuda.get_device_properties(index)
    capability = f"{properties.major}.{properties.minor}"
    free, total = torch.cuda.mem_get_info(index)
    text = f"{properties.name}, {total / 2**30:.0f} GiB, compute capability {capability}"
    if free < total / 2:
        return Finding(
            _TOPIC, f"cuda:{index}", "warn", f"{text}; only {free / 2**30:.1f} GiB free", "see who uses it: nvidia-smi"
        )
    return Finding(_TOPIC, f"cuda:{index}", "ok", text)


def _no_accelerator() -> Finding:
    if Path("/proc/driver/nvidia/version").exists():
        build = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "a CPU build"
        return Finding(
            _TOPIC,
            "accelerator",
            "warn",
            f"NVIDIA's driver is loaded, but torch {torch.__version__} ({build}) finds no device",
            "install the torch build for your driver (https://pytorch.org/get-started), and look at "
            f"CUDA_VISIBLE_DEVICES (now {os.environ.get('CUDA_VISIBLE_DEVICES', 'not set')})",
        )
    return Finding(
        _TOPIC, "accelerator", "warn", "none", "small models train on the CPU; for others use a machine with a GPU"
    )


def _cpu() -> Finding:
    model, flags = _cpu_info()
    fast = [flag.upper() for flag in _FAST if flag in flags]
    has = ", ".join(fast) if fast else "no AVX2, AVX-512 or AMX found"
    return Finding(_TOPIC, "cpu", "ok", f"{model}, {usable_cores()} of {os.cpu_count()} cores usable; {has}")


def _threads() -> Finding:
    threads, cores = torch.get_num_threads(), usable_cores()
    text = f"torch computes with {threads}"
    if threads > cores:
        return Finding(_TOPIC, "threads", "warn", f"{text}, on {cores} cores", f"export OMP_NUM_THREADS={cores}")
    return Finding(_TOPIC, "threads", "ok", text)


def _cpu_info() -> tuple[str, set[str]]:
    """Name and flags; Linux says them, elsewhere only the name is known."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine(), set()
    fields = dict(
        reversed([(key.strip(), value.strip()) for key, _, value in (line.partition(":") for line in lines)])
    )
    flags = fields.get("flags", fields.get("Features", ""))
    return fields.get("model name", platform.machine()), set(flags.split())
