"""The precision that a training computes in."""

from __future__ import annotations

import torch

from d2e_sft.config.recipe import Precision, Recipe
from d2e_sft.model.device import automatic_dtype, has_bfloat16
from d2e_sft.util.distributed import asked_for
from d2e_sft.util.errors import UserError


def precision_for(recipe: Recipe) -> Precision:
    """The recipe's precision; with `train.bf16=null` bfloat16 if the device is fast in it, otherwise float32.

    Fast are CUDA devices with native bfloat16, and CPUs that multiply faster in it (measured).

    Raises:
        UserError: the device or the engine does not support the precision, or weights in float16.
    """
    wanted, cuda = recipe.train.precision, torch.cuda.is_available()
    if wanted == "auto" and _only_float32():
        return "float32"
    if recipe.model.dtype == "float16":
        raise UserError(
            "model.dtype=float16: gradients of float16 weights underflow; expected float32 or bfloat16 weights",
            remedy="keep model.dtype=float32 and set train.fp16=true for mixed precision",
        )
    if wanted == "auto":
        return automatic_precision()
    if wanted == "float16" and not cuda:
        raise UserError("train.fp16=true: needs a CUDA device, and this machine has none", "use train.fp16=false")
    if wanted == "bfloat16":
        refused = {
            "this CUDA device has no bfloat16": cuda and not has_bfloat16(cuda_only=True),
            "not supported on MPS": torch.backends.mps.is_available(),
            "DeepSpeed without an accelerator trains in float32 only": _only_float32(),
        }
        for reason, applies in refused.items():
            if applies:
                raise UserError(f"train.bf16=true: {reason}", "use train.bf16=null, or false for float32")
    return wanted


def automatic_precision() -> Precision:
    """The precision of `train.bf16=null` on this machine."""
    return "float32" if _only_float32() else automatic_dtype()


def _only_float32() -> bool:
    """Whether the engine is DeepSpeed without an accelerator."""
    return asked_for("DEEPSPEED") and not torch.accelerator.is_available()
