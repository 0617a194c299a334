"""Which precision a training step computes in, and whether this machine can."""

from __future__ import annotations

import torch

from d2e_sft.config.recipe import Precision, Recipe
from d2e_sft.util.errors import UserError


def resolve_precision(recipe: Recipe) -> Precision:
    """The recipe's precision with `auto` replaced: bfloat16 where the device computes in it fast, else float32.

    Fast means CUDA with native bfloat16, or a CPU with AMX. Mixed precision keeps float32 weights, so weights in
    float16 are refused.

    Raises:
        UserError: a precision that the device lacks, or weights that mixed precision cannot train.
    """
    wanted = recipe.train.precision
    if recipe.model.dtype == "float16":
        raise UserError(
            "model.dtype=float16: gradients of float16 weights underflow; expected float32 or bfloat16 weights",
            remedy="keep model.dtype=float32 and set train.precision=float16 for mixed precision",
        )
    cuda = torch.cuda.is_available()
    native = cuda and torch.cuda.is_bf16_supported(including_emulation=False)
    if wanted == "auto":
        return "bfloat16" if native or (not cuda and torch.cpu._is_amx_tile_supported()) else "float32"
    if wanted == "float16" and not cuda:
        raise UserError("train.precision=float16: needs a CUDA device, and there is none", "use auto or float32")
    if wanted == "bfloat16" and cuda and not native:
        raise UserError("train.precision=bfloat16: this CUDA device has no bfloat16", "use auto, float16 or float32")
    if wanted == "bfloat16" and torch.backends.mps.is_available():
        raise UserError("train.precision=bfloat16: not supported on MPS", "use auto or float32")
    return wanted
