"""The device of this process."""

from __future__ import annotations

import torch


def usable_device() -> torch.device:
    """The accelerator that torch finds (CUDA, MPS, XPU, …), else the CPU."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return found or torch.device("cpu")
