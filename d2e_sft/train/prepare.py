"""Precision, model and adapter of a run, shared by training and the dry run."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from transformers import PreTrainedModel
from transformers.integrations import is_deepspeed_zero3_enabled

from d2e_sft.config.objectives import BASE
from d2e_sft.config.recipe import Precision, Recipe
from d2e_sft.model.attention.registry import BY_BRANCH
from d2e_sft.model.device import automatic_dtype, has_bfloat16
from d2e_sft.model.layers import prepare_for_adapter, quantization_config
from d2e_sft.model.loading import LoadedModel, load_model
from d2e_sft.model.storage.folder import BUILTIN, resolve_name
from d2e_sft.objective.objectives import function_of
from d2e_sft.objective.reference import check_reference
from d2e_sft.util.distributed import asked_for
from d2e_sft.util.errors import UserError
from d2e_sft.util.startup import without_notes


def settle_recipe(recipe: Recipe, *, elsewhere: bool = False) -> None:
    """Check what only torch can tell, and resolve `train.bf16`: for this device, or for a CUDA card `elsewhere`."""
    function_of(recipe.d2e)
    if recipe.d2e.other_model not in (None, BASE):
        check_reference(recipe)
    if elsewhere:
        recipe.train.bf16 = recipe.train.precision in ("auto", "bfloat16")
    else:
        recipe.train.bf16 = precision_for(recipe) == "bfloat16"


def precision_for(recipe: Recipe) -> Precision:
    """Return the precision; with `train.bf16=null` bfloat16 if the device is fast in it, otherwise float32."""
    precision, cuda = recipe.train.precision, torch.cuda.is_available()
    if precision == "auto":
        return "float32" if _only_float32() else automatic_dtype()
    if precision == "float32":
        return precision
    half = precision == "float16"
    refused = {
        "this CUDA device has no bfloat16": not half and cuda and not has_bfloat16(cuda_only=True),
        "float16 needs CUDA": half and not cuda,
        "not supported on MPS": not half and torch.backends.mps.is_available(),
        "DeepSpeed without an accelerator trains in float32 only": _only_float32(),
    }
    for reason, applies in refused.items():
        if applies:
            key, remedy = "bf16", "use train.bf16=null, or false"
            if half:
                key, remedy = "fp16", "dry-run it for a card (--gpu NAME), or use train.fp16=false"
            raise UserError(f"train.{key}=true: {reason}", f"{remedy} for float32")
    return precision


def slow_precision(recipe: Recipe) -> str | None:
    """Return a warning if the recipe asks for bfloat16 of a CPU that has no instructions for it; None otherwise."""
    if recipe.train.precision != "bfloat16" or torch.accelerator.is_available() or has_bfloat16():
        return None
    return "train.bf16=true is slow on a CPU without bfloat16 instructions; remedy: train.bf16=false for float32"


def _only_float32() -> bool:
    """Whether the engine is DeepSpeed without an accelerator."""
    return asked_for("DEEPSPEED") and not torch.accelerator.is_available()


def load_on_all(recipe: Recipe, state: PartialState, **chosen: Any) -> LoadedModel:
    """Load the recipe's model in all processes, after one downloaded it; `chosen` are options of `load_model`."""
    model = recipe.model
    # Our own implementations are for packed rows; the trainer sets them once it knows that the model takes them.
    attention = None if model.attention == BY_BRANCH else model.attention
    options: dict[str, Any] = {"dtype": model.dtype, "attention": attention}
    if model.weights == "random":
        options["seed"] = recipe.train.seed
    if model.quantization is not None:
        options["quantization"] = quantization_config(model.quantization, recipe.train.precision)
    options |= chosen
    if is_deepspeed_zero3_enabled():
        with state.local_main_process_first():
            resolve_name(model.name)
        # Processes load shards together, so none may wait for another to finish.
        return load_model(model.name, **options)
    with state.local_main_process_first():
        return load_model(model.name, **options)


def adapter_config(recipe: Recipe) -> Any:
    """peft's LoraConfig of the recipe; None without an adapter."""
    if recipe.model.lora is None:
        return None
    from peft import LoraConfig

    return LoraConfig(**recipe.model.lora.model_dump())


def wrapped_in_adapter(model: PreTrainedModel, config: Any | None, name: str) -> Any:
    """Wrap a model in an adapter to train, as peft's PeftModel; without a config return it as it is.

    `config` is peft's; a missing task type is taken from the model. The adapter names its base by `name`, or by
    the folder that it stands for.
    """
    if config is None:
        return model
    from peft import get_peft_model

    config = copy.copy(config)
    config.task_type = config.task_type or ("SEQ_2_SEQ_LM" if model.config.is_encoder_decoder else "CAUSAL_LM")
    quantized = bool(getattr(model, "is_quantized", False))
    try:
        with without_notes():
            wrapped = get_peft_model(prepare_for_adapter(model) if quantized else model, config)
    except ValueError as error:
        raise UserError(
            f"model.lora: does not fit {name!r} ({error})", "correct target_modules or modules_to_save"
        ) from error
    # A name that peft can load too: the path of a builtin model's copy, and the absolute path of a folder, since a
    # relative one would depend on where the adapter is used.
    name = resolve_name(name) if name == BUILTIN else name
    folder = Path(name)
    wrapped.peft_config["default"].base_model_name_or_path = str(folder.resolve()) if folder.is_dir() else name
    return wrapped


def keep_sums_in_float32(state: Any) -> None:
    """Make FSDP2 return float32: it casts outputs to the policy's dtype, and ours are sums of losses, not logits."""
    plugin: Any = getattr(state, "fsdp_plugin", None)
    policy = getattr(plugin, "mixed_precision_policy", None)
    if policy is not None and getattr(plugin, "fsdp_version", 1) == 2:
        plugin.mixed_precision_policy = replace(policy, output_dtype=torch.float32)
