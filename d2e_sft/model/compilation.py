"""torch.compile, layer by layer, inside gradient checkpointing and the hooks of FSDP and DeepSpeed.

Packed attention runs uncompiled, because its pattern changes with every batch. Names of parameters stay.
"""

import inspect
from typing import Any

import torch
from torch import nn
from transformers.integrations import is_deepspeed_zero3_enabled

from d2e_sft.model.attention.registry import register
from d2e_sft.model.forward import bare_model
from d2e_sft.util.errors import UserError


def check_compiler(
    device: torch.device, asked_by: str = "train.compile_layers=true", instead: str = "set train.compile_layers=false"
) -> None:
    """Compile a small function, so that a missing compiler is a UserError before anything is loaded.

    Also refuses ZeRO-3, which cannot gather the weights of compiled layers.
    """
    if is_deepspeed_zero3_enabled():
        raise UserError(
            "train.compile_layers=true: not supported under ZeRO-3",
            "set train.compile_layers=false, or use --launch ddp or zero2",
        )
    function = torch.compile(lambda values: torch.sin(values) + 1)
    try:
        # A cached kernel would hide a missing compiler.
        with torch.compiler.config.patch(force_disable_caches=True):  # type: ignore[attr-defined]
            function(torch.ones(8, device=device))
    except Exception as error:  # each missing part (g++, triton, Python's headers) raises a type of its own
        missing = "a C++ compiler (g++)" if device.type == "cpu" else "triton and a C compiler (gcc)"
        raise UserError(
            f"{asked_by}: torch.compile does not work on {device.type} here ({str(error).splitlines()[0]})",
            remedy=f"install {missing}, or {instead}",
        ) from error


def compile_layers(model: nn.Module, backend: str = "inductor") -> int:
    """Compile a model's layers in place and return how many there are; UserError if none is of transformers' class.

    They compile when first run, once for all layers of a kind and all lengths.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    causal = bare_model(model)
    layers = [module for module in causal.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise UserError(
            f"train.compile_layers=true: {type(causal).__name__} has no layers that can be compiled separately",
            remedy="set train.compile_layers=false",
        )
    register(beside_compiled=True)
    compiled: dict[type, Any] = {}
    for kind in {type(layer) for layer in layers}:
        forward = torch.compile(inspect.unwrap(kind.forward), dynamic=True, backend=backend)
        # transformers wraps gradient checkpointing around a subclass's forward again.
        compiled[kind] = type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})
    for layer in layers:
        layer.__class__ = compiled[type(layer)]
    return len(layers)
