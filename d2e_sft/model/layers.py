"""Layers in another form: compiled one by one, reordered for oneDNN, or with quantised weights.

Compiled layers stay inside gradient checkpointing and the hooks of FSDP and DeepSpeed; names of parameters stay.
Packed attention runs uncompiled, because its pattern changes with every batch.

oneDNN is for decoding in float32 on a CPU: torch multiplies float32 matrices by MKL, which uses half of the vector
width of an AMD processor; oneDNN uses all of it. The weights are reordered once, which makes steps with few rows
faster, too. The result of a row does not depend on the number of rows that are multiplied together.

Quantised weights are for training an adapter (QLoRA, arXiv:2305.14314), through bitsandbytes. 4bit is NF4 with double
quantisation; packed rows stay exact. 8bit is LLM.int8(), which also rounds activations.
"""

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from transformers.integrations import is_deepspeed_zero3_enabled

from d2e_sft.config.recipe import Precision, Quantization
from d2e_sft.model.attention.registry import register
from d2e_sft.model.device import usable_device
from d2e_sft.model.forward import bare_model
from d2e_sft.util.distributed import asked_for
from d2e_sft.util.errors import UserError

_INSTALL = "pip install 'd2e-sft[train-gpu]'"


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


class ReorderedLinear(nn.Module):
    """Computes the same as a `nn.Linear` in float32 on a CPU, without gradient."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features, self.bias = linear.in_features, linear.out_features, linear.bias
        reordered = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), None)
        self.register_buffer("weight", reordered, persistent=False)

    def forward(self, states: Tensor) -> Tensor:
        """(…, in_features) → (…, out_features)."""
        result: Tensor = torch.ops.mkldnn._linear_pointwise(states, self.weight, self.bias, "none", [], "")
        return result


def ready_to_decode(model: Any, device: torch.device | str) -> Any:
    """Move a model to its device in eval mode and reorder its weights; it can no longer be trained or saved."""
    model.to(device).eval()
    by_mkl = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()  # builds for x86
    if torch.device(device).type == "cpu" and by_mkl:
        for module in list(model.modules()):
            for name, child in module.named_children():
                # Mamba multiplies by the weights of `dt_proj` itself.
                if type(child) is nn.Linear and child.weight.dtype == torch.float32 and name != "dt_proj":
                    setattr(module, name, ReorderedLinear(child))
    return model


def quantization_config(kind: Quantization, precision: Precision) -> Any:
    """Return transformers' BitsAndBytesConfig; products with 4-bit weights are computed in `precision`."""
    engine = "ZeRO-3" if is_deepspeed_zero3_enabled() else "FSDP" if asked_for("FSDP") else None
    if engine:
        raise UserError(
            f"model.quantization={kind}: {engine} shards the weights, which quantised weights do not support",
            remedy="use --launch ddp or zero2, or model.quantization=null",
        )
    _check_bitsandbytes(kind)
    from transformers import BitsAndBytesConfig

    if kind == "8bit":
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.float32 if precision == "auto" else getattr(torch, precision),
    )


def prepare_for_adapter(model: Any) -> Any:
    """Freeze a quantised model and keep its other weights (norms, embeddings, head) in float32, as peft advises.

    The trainer turns gradient checkpointing on, in a form that needs no gradients at the embeddings.
    """
    from peft import prepare_model_for_kbit_training

    for module in model.modules():
        # On CPUs with AVX-512 BF16, bitsandbytes repacks 4-bit weights permanently at the first forward without
        # gradient, with more rounding and in a form that training cannot use.
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
    return prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)


def _check_bitsandbytes(kind: Quantization) -> None:
    try:
        import bitsandbytes
    except (ImportError, OSError, RuntimeError) as error:  # a native library that fails to load raises the latter two
        missing = isinstance(error, ModuleNotFoundError) and error.name == "bitsandbytes"
        why = "is not installed" if missing else f"cannot be imported ({error})"
        raise UserError(f"model.quantization={kind}: bitsandbytes {why}", remedy=_INSTALL) from None
    device = usable_device().type
    supported = getattr(bitsandbytes, "supported_torch_devices", {"cuda"})
    if device not in supported:
        raise UserError(
            f"model.quantization={kind}: bitsandbytes {bitsandbytes.__version__} does not run on {device}; it runs on "
            f"{', '.join(sorted(supported))}",
            remedy="train on a machine with a CUDA device, or set model.quantization=null",
        )
