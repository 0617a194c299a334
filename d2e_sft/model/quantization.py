"""Quantised weights under an adapter (QLoRA, arXiv:2305.14314), through bitsandbytes.

4bit is NF4 with double quantisation; packed rows stay exact. 8bit is LLM.int8(), which also rounds activations.
"""

from typing import Any

import torch
from transformers.integrations import is_deepspeed_zero3_enabled

from d2e_sft.config.recipe import Precision, Quantization
from d2e_sft.model.device import usable_device
from d2e_sft.util.distributed import asked_for
from d2e_sft.util.errors import UserError

_INSTALL = "pip install 'd2e-sft[train-gpu]'"


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
