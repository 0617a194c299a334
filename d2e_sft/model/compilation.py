"""torch.compile, layer by layer.

Packed attention runs uncompiled (which tokens attend changes with every batch), so what gains is what stands around
it in each layer. Layers are compiled inside gradient checkpointing and inside the hooks of FSDP and DeepSpeed, and
keep their class's name and their parameters' names.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn
from transformers.integrations import is_deepspeed_zero3_enabled

from d2e_sft.model.forward import bare_model
from d2e_sft.util.errors import UserError


def check_compiler(
    device: torch.device, asked_by: str = "train.compile_layers=true", instead: str = "set train.compile_layers=false"
) -> None:
    """Compile a small function, so that a machine without a compiler is found out before anything is loaded.

    Args:
        asked_by: the option that wants it, for the message.
        instead: what to do without.

    Raises:
        UserError: it cannot be compiled, and says what torch's compiler missed; or DeepSpeed gathers each module's
            weights as it runs (ZeRO-3), which compiled layers would not let it do.
    """
    if is_deepspeed_zero3_enabled():
        raise UserError(
            "train.compile_layers=true: not supported under ZeRO-3",
            "set train.compile_layers=false, or use --launch ddp or zero2",
        )
    function = torch.compile(lambda values: torch.sin(values) + 1)
    try:
        # A kernel kept from an earlier run would hide that the compiler has gone.
        with torch.compiler.config.patch(force_disable_caches=True):  # type: ignore[attr-defined]
            function(torch.ones(8, device=device))
    # Whatever is missing (g++, triton, Python's headers) is named by an exception of its own.
    except Exception as error:
        missing = "a C++ compiler (g++)" if device.type == "cpu" else "triton and a C compiler (gcc)"
        raise UserError(
            f"{asked_by}: torch.compile does not work on {device.type} here ({str(error).splitlines()[0]})",
            remedy=f"install {missing}, or {instead}",
        ) from error


def compile_layers(model: nn.Module, backend: str = "inductor") -> int:
    """Compile a model's layers in place; they compile when first run, once for all layers of a kind and all lengths.

    Args:
        model: a transformers model, possibly with an adapter.
        backend: torch.compile's.

    Returns:
        the number of layers.

    Raises:
        UserError: the model has no layers of transformers' common class.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    causal = bare_model(model)
    layers = [module for module in causal.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise UserError(
            f"train.compile_layers=true: {type(causal).__name__} has no layers that can be compiled one by one",
            remedy="set train.compile_layers=false",
        )
    compiled = {kind: _compiled_kind(kind, backend) for kind in {type(layer) for layer in layers}}
    for layer in layers:
        layer.__class__ = compiled[type(layer)]
    return len(layers)


def _compiled_kind(kind: type[nn.Module], backend: str) -> Any:
    """A subclass with the class's forward compiled; transformers wraps gradient checkpointing around it again."""
    forward = torch.compile(inspect.unwrap(kind.forward), dynamic=True, backend=backend)
    return type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})
