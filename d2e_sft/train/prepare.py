"""Checks, model, precision and steps of a run, shared by training and the dry run."""

from __future__ import annotations

import copy
import math
import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from transformers import PreTrainedModel
from transformers.integrations import is_deepspeed_zero3_enabled

from d2e_sft.config.objectives import BASE
from d2e_sft.config.recipe import Precision, Recipe
from d2e_sft.data.foreign import refuse_foreign
from d2e_sft.data.rows import file_of
from d2e_sft.data.sample import check_readable
from d2e_sft.model.attention.registry import IMPLEMENTATIONS
from d2e_sft.model.device import automatic_dtype, has_bfloat16
from d2e_sft.model.loading import LoadedModel, load_model
from d2e_sft.model.quantization import prepare_for_adapter, quantization_config
from d2e_sft.model.storage.folder import resolve_name
from d2e_sft.objective.own import function_of
from d2e_sft.util.distributed import asked_for
from d2e_sft.util.errors import UserError

# Names of optimisers → the module that transformers imports for them, and its package.
_OPTIMIZER_PACKAGES = {
    r"adamw_torch_[48]bit": ("torchao", "torchao"),
    r".*_8bit|paged_.*|lion_.*|ademamix": ("bitsandbytes", "bitsandbytes"),
    r"schedule_free_.*": ("schedulefree", "schedulefree"),
    r"stable_adamw": ("optimi", "torch-optimi"),
    r"grokadamw": ("grokadamw", "grokadamw"),
}


@dataclass(frozen=True)
class Steps:
    """Counts of one run, as in transformers' Trainer."""

    samples: int
    processes: int
    accumulation: int  # micro-batches per optimiser step and process
    micro_batches: int  # per epoch and process
    per_epoch: int  # optimiser steps
    total: int
    warmup: int


def loads_whole_steps(train: Any) -> bool:
    """Whether a process loads its share of a step at once, and cuts it by tokens or contexts."""
    return train.micro_batch_tokens is not None or train.rows_per_context > 1


def count_steps(train: Any, samples: int, processes: int) -> Steps:
    """Optimiser steps of a run over `samples` rows; a step that is loaded at once counts as one micro-batch."""
    accumulation = accumulation_steps(train, processes)
    at_once = train.batch_size // processes if loads_whole_steps(train) else train.per_device_train_batch_size
    micro_batches = math.ceil(math.ceil(samples / at_once) / processes)
    per_epoch = math.ceil(micro_batches / accumulation)
    total = train.max_steps if train.max_steps > 0 else math.ceil(train.num_train_epochs * per_epoch)
    warmup = int(train.warmup_steps) if train.warmup_steps >= 1 else math.ceil(total * train.warmup_steps)
    return Steps(samples, processes, accumulation, micro_batches, per_epoch, total, warmup)


def check_recipe(recipe: Recipe, processes: int) -> None:
    """Check everything that needs no model, and resolve `train.bf16`.

    Raises UserError if a file is missing, for random weights with an adapter, or as `function_of`, `check_optimizer`,
    `precision_for` and `accumulation_steps`.
    """
    if recipe.model.weights == "random" and recipe.model.lora is not None:
        raise UserError(
            "model.weights=random with model.lora: an adapter is saved without its base weights, and random weights "
            "cannot be restored",
            remedy="train all weights (model.lora=null; --method sft or d2e)",
        )
    data = recipe.data
    files = [file_of(data.train), *([file_of(data.dev, "dev")] if data.dev else [])]
    for file in [*files, *([Path(data.probe)] if data.probe else [])]:
        check_readable(file)
        refuse_foreign(file, first_row=not data.skip_bad)
    function_of(recipe.d2e)
    if recipe.d2e.frozen_views and recipe.d2e.bias_model != BASE:
        resolve_name(str(recipe.d2e.bias_model))
    check_optimizer(recipe.train.optim)
    recipe.train.bf16 = precision_for(recipe) == "bfloat16"
    accumulation_steps(recipe.train, processes)


def precision_for(recipe: Recipe) -> Precision:
    """The recipe's precision; with `train.bf16=null` bfloat16 if the device is fast in it, otherwise float32.

    Raises UserError if the device or the engine does not support the precision, or for weights in float16.
    """
    wanted, cuda = recipe.train.precision, torch.cuda.is_available()
    if recipe.model.dtype == "float16":
        raise UserError(
            "model.dtype=float16: gradients of float16 weights underflow; expected float32 or bfloat16 weights",
            remedy="keep model.dtype=float32 and set train.fp16=true for mixed precision",
        )
    if wanted == "auto":
        return automatic_precision()
    if wanted == "float32":
        return wanted
    half, other = wanted == "float16", torch.accelerator.is_available() and not cuda
    refused = {
        "this CUDA device has no bfloat16": not half and cuda and not has_bfloat16(cuda_only=True),
        "expected CUDA or a CPU; this device is neither": half and other,
        "not supported on MPS": not half and torch.backends.mps.is_available(),
        "DeepSpeed without an accelerator trains in float32 only": _only_float32(),
    }
    for reason, applies in refused.items():
        if applies:
            key, remedy = ("fp16", "use train.fp16=false") if half else ("bf16", "use train.bf16=null, or false")
            raise UserError(f"train.{key}=true: {reason}", f"{remedy} for float32")
    return wanted


def automatic_precision() -> Precision:
    """The precision of `train.bf16=null` on this machine."""
    return "float32" if _only_float32() else automatic_dtype()


def _only_float32() -> bool:
    """Whether the engine is DeepSpeed without an accelerator."""
    return asked_for("DEEPSPEED") and not torch.accelerator.is_available()


def check_optimizer(name: str) -> None:
    """Raise UserError if the package of an optimiser is not installed."""
    module, package = next(
        (needed for pattern, needed in _OPTIMIZER_PACKAGES.items() if re.fullmatch(pattern, name)), ("torch", "torch")
    )
    if find_spec(module) is None:
        raise UserError(
            f"train.optim={name}: needs the package {package}, which is not installed",
            remedy=f"pip install {package}, or use train.optim=adamw_torch_fused",
        )


def load_on_all(recipe: Recipe, state: PartialState, *, weights: bool = True) -> LoadedModel:
    """Load the recipe's model in all processes; one downloads or converts it first. Errors as in `load_model`.

    Without `weights` the model has tensors without data; UserError if it is to be quantised.
    """
    model = recipe.model
    # Our own implementations are for packed rows; the trainer sets them once it knows that the model takes them.
    attention = None if model.attention in IMPLEMENTATIONS else model.attention
    options: dict[str, Any] = {"dtype": model.dtype, "attention": attention, "weights": weights}
    if model.quantization is not None and not weights:
        raise UserError(
            f"--without-weights: the memory of model.quantization={model.quantization} cannot be estimated",
            remedy="leave --without-weights out, and --dry-run measures it on a machine that has the model",
        )
    if model.weights == "random":
        options["seed"] = recipe.train.seed
    if model.quantization is not None:
        options["quantization"] = quantization_config(model.quantization, recipe.train.precision)
    if is_deepspeed_zero3_enabled():
        with state.local_main_process_first():
            resolve_name(model.name)
        # Processes load shards together, so none may wait for another to finish.
        return load_model(model.name, **options)
    with state.local_main_process_first():
        return load_model(model.name, **options)


def accumulation_steps(train: Any, processes: int) -> int:
    """Micro-batches per optimiser step and process, by a `TrainSection` or a `D2EConfig`.

    It is 1 if a process loads its share of a step at once, see `loads_whole_steps`.
    Raises UserError if `batch_size` cannot be split over the processes, in micro-batches of equal size.
    """
    at_once = loads_whole_steps(train)
    size = 1 if at_once else train.per_device_train_batch_size
    if train.batch_size % (size * processes):
        parts = "" if at_once else f" in micro-batches of train.per_device_train_batch_size={size}"
        raise UserError(
            f"train.batch_size={train.batch_size} cannot be split over {processes} processes{parts}",
            remedy=f"choose train.batch_size as a multiple of {size * processes}, or smaller micro-batches",
        )
    return 1 if at_once else train.batch_size // (size * processes)


def adapter_config(recipe: Recipe) -> Any:
    """peft's LoraConfig of the recipe; None without an adapter."""
    if recipe.model.lora is None:
        return None
    from peft import LoraConfig

    return LoraConfig(**recipe.model.lora.model_dump())


def wrapped_in_adapter(model: PreTrainedModel, config: Any | None, name: str) -> Any:
    """Wrap a model in an adapter to train, as peft's PeftModel; without a config return it as it is.

    `config` is peft's; a missing task type is taken from the model. The adapter keeps `name`, by which the user called
    the model. Raises UserError if the adapter does not fit the model.
    """
    if config is None:
        return model
    from peft import get_peft_model

    config = copy.copy(config)
    config.task_type = config.task_type or ("SEQ_2_SEQ_LM" if model.config.is_encoder_decoder else "CAUSAL_LM")
    quantized = bool(getattr(model, "is_quantized", False))
    try:
        wrapped = get_peft_model(prepare_for_adapter(model) if quantized else model, config)
    except ValueError as error:
        raise UserError(
            f"model.lora: does not fit {name!r} ({error})", "correct target_modules or modules_to_save"
        ) from error
    # The user's name, since the resolved path of a builtin model is local; but the absolute path of a folder, since a
    # relative one would depend on where the adapter is used.
    folder = Path(name)
    wrapped.peft_config["default"].base_model_name_or_path = str(folder.resolve()) if folder.is_dir() else name
    return wrapped
