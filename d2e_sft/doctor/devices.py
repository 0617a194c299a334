"""Devices, the precisions they compute in (tested by multiplying), and attention implementations."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from d2e_sft.doctor.finding import Finding, Status
from d2e_sft.doctor.versions import installed_version
from d2e_sft.model.attention.cuda import AMPERE, cuda_kernel_takes
from d2e_sft.model.attention.registry import BY_BRANCH, DENSE
from d2e_sft.model.attention.segments import LayerOptions
from d2e_sft.model.device import automatic_dtype, usable_device

# Allowed error of a product of random matrices, relative to its norm; half precision rounds each factor.
_TOLERANCE = {"bfloat16": 2e-2, "float16": 5e-3}


def check_devices() -> Iterator[Finding]:
    """Report each accelerator with its memory, and the CPU with cores and threads."""
    if torch.cuda.is_available():
        yield from (_cuda(index) for index in range(torch.cuda.device_count()))
    elif torch.accelerator.is_available():
        yield Finding("accelerator", "ok", str(torch.accelerator.current_accelerator()))
    elif Path("/proc/driver/nvidia/version").exists():
        build = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "a CPU build"
        yield Finding(
            "accelerator",
            "warn",
            f"NVIDIA's driver is loaded, but torch {torch.__version__} ({build}) finds no device",
            "install the torch build for your driver (https://pytorch.org/get-started), and look at "
            f"CUDA_VISIBLE_DEVICES (now {os.environ.get('CUDA_VISIBLE_DEVICES', 'not set')})",
        )
    else:
        remedy = "small models train on the CPU; for others use a machine with a GPU"
        yield Finding("accelerator", "warn", "none", remedy)
    yield _cpu()


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cuda(index: int) -> Finding:
    properties = torch.cuda.get_device_properties(index)
    free, total = torch.cuda.mem_get_info(index)
    text = f"{properties.name}, {total / 2**30:.0f} GiB, compute capability {properties.major}.{properties.minor}"
    if free < total / 2:
        text += f"; only {free / 2**30:.1f} GiB free"
        return Finding(f"cuda:{index}", "warn", text, "see what uses it: nvidia-smi")
    return Finding(f"cuda:{index}", "ok", text)


def _cpu() -> Finding:
    info = Path("/proc/cpuinfo")  # on Linux
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    name = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())
    cores, threads = usable_cores(), torch.get_num_threads()
    text = (
        f"{name}, {cores} of {os.cpu_count()} cores usable; torch computes with {threads} threads and "
        f"{torch.backends.cpu.get_cpu_capability()} instructions"
    )
    if threads > cores:
        return Finding("cpu", "warn", text, f"export OMP_NUM_THREADS={cores}")
    return Finding("cpu", "ok", text)


def check_precisions() -> Iterator[Finding]:
    """Compare bfloat16 and float16 on the device of training with float32 on the CPU."""
    device = usable_device()
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(256, 256, generator=generator) for _ in range(2))
    for name in _TOLERANCE:
        yield _half(name, left, right, device)


def _half(name: str, left: Tensor, right: Tensor, device: torch.device) -> Finding:
    dtype, instead = getattr(torch, name), "use train.bf16=null or float32"
    text = f"works on {device.type}"
    try:
        product = (left.to(device, dtype) @ right.to(device, dtype)).float().cpu()
        if device.type == "cpu":  # on a GPU so small a product measures the kernel launch
            single, half = seconds_of_products(32, torch.float32, dtype)
            text += f", {single / half:.2g} × as fast as float32"
    except RuntimeError as failure:  # no kernel on this device
        return Finding(name, "warn", f"not on {device.type} ({str(failure).splitlines()[0]})", instead)
    error = float((product - left @ right).norm() / (left @ right).norm())
    if error > _TOLERANCE[name]:
        return Finding(name, "warn", f"wrong by {error:.0e} on {device.type}", instead)
    if name == "float16":
        return Finding(name, "ok", f"{text}; train.fp16=true uses float16" if device.type == "cuda" else text)
    if device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        return Finding(name, "warn", "emulated by this GPU, so training rejects it", "use float16 or float32")
    return Finding(name, "ok", f"{text}; train.bf16=null uses {automatic_dtype()}")


def check_attentions() -> Iterator[Finding]:
    """Report the attention for packed rows, by which kernel, and transformers' implementations."""
    from transformers.utils import is_torch_flex_attn_available

    cuda = torch.cuda.is_available()
    status, kernel = _kernel(cuda)
    yield Finding("packed rows", status, f"{BY_BRANCH}, {kernel}; {', '.join(DENSE)} use a dense mask")
    others = {
        "flash_attention_2": cuda and installed_version("flash-attn") is not None,
        "flex_attention": is_torch_flex_attn_available(),
    }
    names = [*DENSE, *(f"{name} (not for packed rows)" for name, installed in others.items() if installed)]
    yield Finding("transformers", "ok", ", ".join(names))


def _kernel(cuda: bool) -> tuple[Status, str]:
    if not cuda:
        return "ok", "by the CPU's flash kernel"
    if torch.cuda.get_device_capability() < AMPERE:
        return "ok", "segment by segment: the flash kernel needs a card of Ampere or newer"
    rows = torch.zeros(1, 1, 1, 64, dtype=torch.float16, device="cuda")
    if cuda_kernel_takes(rows, rows, LayerOptions(1.0)):
        return "ok", "by CUDA's flash kernel in 16 bits, segment by segment in float32"
    return "warn", "segment by segment, which is slow: the flash kernel does not run here, or is wrong"


def seconds_of_products(rows: int, *dtypes: torch.dtype) -> list[float]:
    """Time the product of a small model's layer on `rows` tokens on the CPU, per dtype; the fastest of three."""
    left, right = torch.ones(rows, 576), torch.ones(576, 1536)
    pairs = {dtype: (left.to(dtype), right.to(dtype)) for dtype in dtypes}
    seconds: dict[torch.dtype, list[float]] = {dtype: [] for dtype in dtypes}
    with torch.no_grad():
        for _ in range(4):  # alternating, so that the load is the same for all; the first warms up
            for dtype, (one, other) in pairs.items():
                start = time.perf_counter()
                torch.mm(one, other)
                seconds[dtype].append(time.perf_counter() - start)
    return [min(seconds[dtype][1:]) for dtype in dtypes]
