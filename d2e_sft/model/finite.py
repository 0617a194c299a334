"""Reject NaN and infinity in a model's weights and outputs: one of them makes a result worthless."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from d2e_sft.model.forward import unwrapped
from d2e_sft.util.errors import ProcessError, UserError


def non_finite(parameters: Sequence[tuple[str, Tensor]]) -> str | None:
    """Return the name of the first weight that contains NaN or infinity, or None.

    Of sharded weights (ZeRO-3, FSDP2) each process checks its own shard. The device is waited for once.
    """
    parts = [(name, part) for name, parameter in parameters if (part := _local_part(parameter)) is not None]
    if not parts:
        return None
    device = parts[0][1].device
    # The sum needs no mask of the same size and is finite if all are; it may overflow, so suspects are checked fully.
    finite = torch.stack([part.sum(dtype=torch.float32).isfinite().to(device) for _, part in parts]).tolist()
    suspects = [pair for pair, fine in zip(parts, finite, strict=True) if not fine]
    return next((name for name, part in suspects if not bool(part.isfinite().all())), None)


def _local_part(parameter: Any) -> Tensor | None:
    part = getattr(parameter, "ds_tensor", parameter).detach()
    part = part.to_local() if hasattr(part, "to_local") else part
    return part if part.is_floating_point() and part.device.type != "meta" and part.numel() else None


def refuse_non_finite(model: str, parameters: Sequence[tuple[str, Tensor]]) -> None:
    """Raise a UserError that names the first weight of a model that contains NaN or infinity."""
    if (weight := non_finite(parameters)) is not None:
        raise UserError(
            f"model {model!r}: the weight {weight} contains NaN or infinity, so every output would be worthless",
            remedy="its training diverged, or the file is damaged: use an earlier checkpoint of the run, or download "
            "it again",
        )


def non_finite_output(prompt: str, problem: str, model: Any = None) -> ProcessError:
    """Return the error about a model's output that is NaN or infinite.

    Args:
        prompt: Its name.
        problem: The output, such as `the log-probability of option 'yes' is nan`.
        model: Its dtype belongs to the message; None if that is unknown.
    """
    dtype = None if model is None else _computing_dtype(unwrapped(model))
    remedy = "use --dtype float32 or bfloat16, and check the model's weights and the decoder"
    if dtype == torch.float16:
        remedy = "float16 holds numbers up to 65,504: compute in bfloat16 or float32 (--dtype, or train.precision)"
    elif dtype == torch.float32:
        remedy = "float32 has the widest range, so check the model's weights and the decoder"
    return ProcessError(
        f"{prompt}: {problem}{f' in {dtype}'.replace('torch.', '') if dtype else ''}; expected finite numbers", remedy
    )


def _computing_dtype(model: Any) -> torch.dtype:
    kind = model.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else model.dtype


def refuse_non_finite_files(folder: Path, name: str) -> None:
    """Do the same for the safetensors files of a folder, for an engine that loads them itself."""
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as weights:
            for key in weights.keys():  # noqa: SIM118 (not a mapping)
                refuse_non_finite(name, [(key, weights.get_tensor(key))])
