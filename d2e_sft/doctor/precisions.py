"""Which precisions this device computes in, found by multiplying: what a library claims is not always so."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch

from d2e_sft.doctor.finding import Finding
from d2e_sft.model.device import usable_device

_TOPIC = "precision"
_SIDE = 256
_REPEATS = 5
# Of a product of two random matrices with unit variance, relative to its norm; half precision rounds each factor.
_TOLERANCE = {"bfloat16": 2e-2, "float16": 5e-3}


def check_precisions() -> Iterator[Finding]:
    """bfloat16, float16 and TF32 on the device that training uses, each compared with float32 on the CPU."""
    device = usable_device()
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(_SIDE, _SIDE, generator=generator) for _ in range(2))
    expected = left @ right
    seconds = _seconds(left.to(device), right.to(device))
    for name in ("bfloat16", "float16"):
        yield _half(name, left, right, expected, device, seconds)
    yield _tf32(left, right, expected, device)


def _half(
    name: str, left: torch.Tensor, right: torch.Tensor, expected: torch.Tensor, device: torch.device, float32: float
) -> Finding:
    dtype = getattr(torch, name)
    instead = "use train.precision=auto or float32"
    try:
        a, b = left.to(device, dtype), right.to(device, dtype)
        error = _error(a @ b, expected)
        ratio = float32 / _seconds(a, b)
    except RuntimeError as failure:  # no kernel for it on this device
        return Finding(_TOPIC, name, "warn", f"not on {device.type} ({str(failure).splitlines()[0]})", instead)
    if error > _TOLERANCE[name]:
        return Finding(_TOPIC, name, "warn", f"wrong by {error:.0e} on {device.type}", instead)
    if name == "bfloat16" and device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        return Finding(_TOPIC, name, "warn", "emulated by this GPU, so training refuses it", "use float16 or float32")
    text = f"{device.type} multiplies in it"
    if device.type == "cpu":  # so small a product tells of a GPU's kernel launch, not of its speed
        text += f", {ratio:.1f} × as fast as in float32 ({_SIDE} × {_SIDE})"
    if name == "float16" and device.type != "cuda":
        return Finding(_TOPIC, name, "ok", f"{text}; train.precision=float16 needs CUDA")
    return Finding(_TOPIC, name, "ok", text)


def _tf32(left: torch.Tensor, right: torch.Tensor, expected: torch.Tensor, device: torch.device) -> Finding:
    if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] < 8:
        return Finding(_TOPIC, "tf32", "ok", f"not on this device ({device.type}); nothing here needs it")
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        error = _error(left.to(device) @ right.to(device), expected)
    finally:
        torch.set_float32_matmul_precision(before)
    used = "rounds as TF32" if error > 1e-5 else "computes in full float32"
    return Finding(_TOPIC, "tf32", "ok", f"float32 products {used} when asked to (relative error {error:.0e})")


def _error(product: torch.Tensor, expected: torch.Tensor) -> float:
    return float((product.float().cpu() - expected).norm() / expected.norm())


def _seconds(a: torch.Tensor, b: torch.Tensor) -> float:
    """Of one product, the quickest of a few after one that warms up."""
    taken = []
    for _ in range(_REPEATS + 1):
        started = time.perf_counter()
        _ = a @ b
        if a.device.type != "cpu":
            torch.accelerator.synchronize()
        taken.append(time.perf_counter() - started)
    return max(min(taken[1:]), 1e-9)
