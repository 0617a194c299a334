"""The device of this process, its mixed precision and its clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch

from d2e_sft.config.recipe import Precision

Result = TypeVar("Result")


def usable_device() -> torch.device:
    """The accelerator that torch finds (CUDA, MPS, XPU, …), else the CPU."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return found or torch.device("cpu")


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[Any]:
    """Mixed precision as the trainer uses it."""
    if precision not in ("bfloat16", "float16"):
        return nullcontext()
    return torch.autocast(device.type, getattr(torch, precision))


def timed(act: Callable[[], Result], device: torch.device) -> tuple[Result, float]:
    """What a call returns, and the seconds that the device took for it."""
    _synchronize(device)
    start = time.perf_counter()
    result = act()
    _synchronize(device)
    return result, time.perf_counter() - start


def _synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize()
