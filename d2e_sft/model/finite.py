"""Detect NaN and infinity in a model's weights: one of them makes every output worthless."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from d2e_sft.util.errors import UserError


def non_finite(parameters: Sequence[tuple[str, Tensor]]) -> str | None:
    """Return the name of the first weight that contains NaN or infinity, or None.

    Sharded weights (ZeRO-3, FSDP2) are checked shard by shard, each process its own. Every weight is read once, and
    the device is waited for once.
    """
    found = [(name, part) for name, parameter in parameters if (part := _local_part(parameter)) is not None]
    if not found:
        return None
    device = found[0][1].device
    # The sum needs no mask of the same size and is finite if all are; it may overflow, so suspects are checked fully.
    finite = torch.stack([part.sum(dtype=torch.float32).isfinite().to(device) for _, part in found]).tolist()
    suspects = [named for named, fine in zip(found, finite, strict=True) if not fine]
    return next((name for name, part in suspects if not bool(part.isfinite().all())), None)


def _local_part(parameter: Any) -> Tensor | None:
    part = getattr(parameter, "ds_tensor", parameter).detach()
    part = part.to_local() if hasattr(part, "to_local") else part
    return part if part.is_floating_point() and part.device.type != "meta" and part.numel() else None


def refuse_non_finite(model: Any, name: str) -> None:
    """Raise a UserError that names the weight if a weight of the model contains NaN or infinity."""
    _refuse(non_finite(list(model.named_parameters())), name)


def refuse_non_finite_files(folder: Path, name: str) -> None:
    """Do the same for the safetensors files of a folder, for an engine that loads them itself."""
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as weights:
            for key in weights.keys():  # noqa: SIM118 (not a mapping)
                _refuse(non_finite([(key, weights.get_tensor(key))]), name)


def _refuse(weight: str | None, model: str) -> None:
    if weight is not None:
        raise UserError(
            f"model {model!r}: the weight {weight} contains NaN or infinity, so every output would be worthless",
            remedy="its training diverged, or the file is damaged: use an earlier checkpoint of the run, or download "
            "it again",
        )
