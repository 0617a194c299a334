"""Whether a model's weights are numbers: one NaN or infinity among them makes every output worthless."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from d2e_sft.util.errors import UserError


def non_finite(parameters: Sequence[tuple[str, Tensor]]) -> str | None:
    """The name of the first weight with a NaN or an infinity; None where there is none.

    Of weights that are spread over processes (ZeRO-3, FSDP2) this process's part is looked at. It reads every weight
    once, and waits for the device once.
    """
    found = [(name, part) for name, parameter in parameters if (part := _own_part(parameter)) is not None]
    if not found:
        return None
    device = found[0][1].device
    # The sum is finite where all are, and needs no mask of the same size; it may overflow, so then each is looked at.
    finite = torch.stack([part.sum(dtype=torch.float32).isfinite().to(device) for _, part in found]).tolist()
    suspects = [named for named, fine in zip(found, finite, strict=True) if not fine]
    return next((name for name, part in suspects if not bool(part.isfinite().all())), None)


def _own_part(parameter: Any) -> Tensor | None:
    """What this process holds of a parameter; None where that is no floating-point number at all."""
    part = getattr(parameter, "ds_tensor", parameter).detach()
    part = part.to_local() if hasattr(part, "to_local") else part
    return part if part.is_floating_point() and part.device.type != "meta" and part.numel() else None


def refuse_non_finite(model: Any, name: str) -> None:
    """Refuse a model whose weights are no numbers.

    Raises:
        UserError: names the weight.
    """
    _refuse(non_finite(list(model.named_parameters())), name)


def refuse_non_finite_files(folder: Path, name: str) -> None:
    """The same of the weights in a folder's safetensors files, for an engine that loads them itself.

    Raises:
        UserError: names the weight.
    """
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as weights:
            for key in weights.keys():  # noqa: SIM118 (it is no mapping)
                _refuse(non_finite([(key, weights.get_tensor(key))]), name)


def _refuse(weight: str | None, model: str) -> None:
    if weight is not None:
        raise UserError(
            f"model {model!r}: the weight {weight} holds NaN or infinite values, so every output would be worthless",
            remedy="the training that made it diverged, or the file is damaged: use an earlier checkpoint of its run, "
            "or download it again",
        )
