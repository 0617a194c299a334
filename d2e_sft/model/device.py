"""The device of this process, its mixed precision and its clock."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from d2e_sft.config.recipe import Precision


def usable_device() -> torch.device:
    """The accelerator that torch finds (CUDA, MPS, XPU, …), else the CPU."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return found or torch.device("cpu")


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[Any]:
    """Mixed precision as the trainer uses it."""
    if precision not in ("bfloat16", "float16"):
        return nullcontext()
    return torch.autocast(device.type, getattr(torch, precision))


def synchronize(device: torch.device) -> None:
    """Wait for what the device has been given, before a clock is read."""
    if device.type != "cpu":
        torch.accelerator.synchronize()
