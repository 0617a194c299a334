"""What a run starts from, prepared alike for training and for the dry run: precision, model, rows and steps."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable
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
from d2e_sft.model.loading import LoadedModel, load_model, resolve_name, untrained_model
from d2e_sft.model.quantization import prepare_for_adapter, quantization_config
from d2e_sft.objective.own import function_of
from d2e_sft.train.rows import TokenRows, read_rows
from d2e_sft.util.distributed import asked_for
from d2e_sft.util.errors import UserError
from d2e_sft.util.terminal import warn

# Names of optimisers → the module that transformers imports for them, and the package that has it.
_OPTIMIZER_PACKAGES = {
    r"adamw_torch_[48]bit": ("torchao", "torchao"),
    r".*_8bit|paged_.*|lion_.*|ademamix": ("bitsandbytes", "bitsandbytes"),
    r"schedule_free_.*": ("schedulefree", "schedulefree"),
    r"stable_adamw": ("optimi", "torch-optimi"),
    r"grokadamw": ("grokadamw", "grokadamw"),
}


@dataclass(frozen=True)
class Steps:
    """Counts of one run, as transformers' Trainer makes them."""

    samples: int
    processes: int
    accumulation: int  # micro-batches a process runs for one optimiser step
    micro_batches: int  # an epoch, on each process
    per_epoch: int  # optimiser steps
    total: int
    warmup: int

    @property
    def micro_batches_in_all(self) -> int:
        """On each process; an epoch's last step may have fewer than the others."""
        epochs, rest = divmod(self.total, self.per_epoch)
        return epochs * self.micro_batches + min(rest * self.accumulation, self.micro_batches)


def count_steps(train: Any, samples: int, processes: int) -> Steps:
    """Steps of a run over `samples` rows, by a `TrainSection` or a `D2EConfig`.

    With `micro_batch_tokens` a step counts as one micro-batch.
    """
    accumulation = accumulation_steps(train, processes)
    at_once = train.batch_size // processes if train.micro_batch_tokens else train.per_device_train_batch_size
    micro_batches = math.ceil(math.ceil(samples / at_once) / processes)
    per_epoch = math.ceil(micro_batches / accumulation)
    total = train.max_steps if train.max_steps > 0 else math.ceil(train.num_train_epochs * per_epoch)
    warmup = int(train.warmup_steps) if train.warmup_steps >= 1 else math.ceil(total * train.warmup_steps)
    return Steps(samples, processes, accumulation, micro_batches, per_epoch, total, warmup)


def check_recipe(recipe: Recipe, processes: int) -> int:
    """Settle what can be settled before a model is loaded; resolves `train.bf16`.

    Returns:
        micro-batches a process runs for one optimiser step.

    Raises:
        UserError: a file is missing, an adapter is asked for on random weights, or as `function_of`,
            `check_optimizer`, `precision_for` and `accumulation_steps`.
    """
    if recipe.model.weights == "random" and recipe.model.lora is not None:
        raise UserError(
            "model.weights=random with model.lora: an adapter is kept without the weights that it was trained on, and "
            "random ones are nowhere to be had again",
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
    return accumulation_steps(recipe.train, processes)


def check_optimizer(name: str) -> None:
    """See that the package of an optimiser is there.

    Raises:
        UserError: it is not installed.
    """
    module, package = next(
        (needed for pattern, needed in _OPTIMIZER_PACKAGES.items() if re.fullmatch(pattern, name)), ("torch", "torch")
    )
    if find_spec(module) is None:
        raise UserError(
            f"train.optim={name}: needs the package {package}, which is not installed",
            remedy=f"pip install {package}, or use train.optim=adamw_torch_fused",
        )


def held_out_rows(recipe: Recipe, loaded: LoadedModel, *, progress: bool) -> TokenRows | None:
    """The rows of `data.dev`; None where the recipe names none.

    Raises:
        UserError: as `read_rows`.
    """
    data = recipe.data
    if data.dev is None:
        return None
    if progress and Path(data.dev).resolve() == Path(data.train).resolve():
        warn(f"data.dev={data.dev} is what is trained on, so nothing is held out")
    return read_rows(recipe, "dev", loaded, progress=progress)


def precision_for(recipe: Recipe) -> Precision:
    """The recipe's precision with `auto` replaced: bfloat16 where the device computes in it fast, else float32.

    Fast means CUDA with native bfloat16, or a CPU that multiplies faster in it (measured), unless the launcher's
    engine is DeepSpeed. Mixed precision keeps float32 weights, so weights in float16 are refused.

    Raises:
        UserError: a precision that the device or the engine lacks, or weights that mixed precision cannot train.
    """
    wanted = recipe.train.precision
    without_bfloat16 = _trains_in_float32_alone()
    if without_bfloat16 and wanted == "auto":
        return "float32"
    if recipe.model.dtype == "float16":
        raise UserError(
            "model.dtype=float16: gradients of float16 weights underflow; expected float32 or bfloat16 weights",
            remedy="keep model.dtype=float32 and set train.fp16=true for mixed precision",
        )
    cuda = torch.cuda.is_available()
    if wanted == "auto":
        return automatic_precision()
    if wanted == "float16" and not cuda:
        raise UserError("train.fp16=true: needs a CUDA device, and there is none", "use train.fp16=false")
    if wanted == "bfloat16" and cuda and not has_bfloat16(cuda_only=True):
        raise UserError("train.bf16=true: this CUDA device has no bfloat16", "use train.bf16=null or train.fp16=true")
    if wanted == "bfloat16" and torch.backends.mps.is_available():
        raise UserError("train.bf16=true: not supported on MPS", "use train.bf16=null or false")
    if wanted == "bfloat16" and without_bfloat16:
        raise UserError(
            "train.bf16=true: DeepSpeed without an accelerator trains in float32 only",
            remedy="use train.bf16=null or false, or --launch ddp",
        )
    return wanted


def automatic_precision() -> Precision:
    """What `auto` stands for on this machine, see `precision_for`."""
    return "float32" if _trains_in_float32_alone() else automatic_dtype()


def _trains_in_float32_alone() -> bool:
    """DeepSpeed without an accelerator does."""
    return asked_for("DEEPSPEED") and not torch.accelerator.is_available()


def load_on_all(recipe: Recipe, state: PartialState) -> LoadedModel:
    model = recipe.model
    # Our own implementations are for packed rows; the trainer sets them once it knows that the model takes them.
    attention = None if model.attention in IMPLEMENTATIONS else model.attention
    options: dict[str, Any] = {"dtype": model.dtype, "attention": attention}
    load: Callable[..., LoadedModel] = load_model
    if model.weights == "random":
        load, options["seed"] = untrained_model, recipe.train.seed
    if model.quantization is not None:
        options["quantization"] = quantization_config(model.quantization, recipe.train.precision)
    if is_deepspeed_zero3_enabled():
        with state.local_main_process_first():  # a conversion happens once
            resolve_name(model.name)
        # Loading in shards is a joint act: waiting for one process to finish would wait for ever.
        return load(model.name, **options)
    with state.local_main_process_first():  # a download or a conversion happens once
        return load(model.name, **options)


def accumulation_steps(train: Any, processes: int) -> int:
    """Micro-batches a process runs for one optimiser step, by a `TrainSection` or a `D2EConfig`.

    Raises:
        UserError: `batch_size` is not a multiple of `per_device_train_batch_size` × processes, or, with
            `micro_batch_tokens`, of the processes.
    """
    if train.micro_batch_tokens is not None:
        if train.batch_size % processes:
            raise UserError(
                f"train.batch_size={train.batch_size} cannot be shared by {processes} processes",
                remedy=f"choose train.batch_size as a multiple of {processes}",
            )
        return 1  # a process takes its share of a step at once, and cuts it by tokens
    at_once = train.per_device_train_batch_size * processes
    if train.batch_size % at_once:
        raise UserError(
            f"train.batch_size={train.batch_size} cannot be cut into micro-batches of "
            f"train.per_device_train_batch_size={train.per_device_train_batch_size} on {processes} processes",
            remedy=f"choose train.batch_size as a multiple of {at_once}, or smaller micro-batches",
        )
    return train.batch_size // at_once


def adapter_config(recipe: Recipe) -> Any:
    """peft's LoraConfig of the recipe; None without an adapter."""
    if recipe.model.lora is None:
        return None
    from peft import LoraConfig

    return LoraConfig(**recipe.model.lora.model_dump())


def wrapped_in_adapter(model: PreTrainedModel, config: Any | None, name: str) -> Any:
    """Wrap a model in an adapter to train, as peft's PeftModel; without a config return it as it is.

    Args:
        config: peft's; a missing task type is taken from the model.
        name: of the model as the user gave it, kept with the adapter.

    Raises:
        UserError: the adapter does not fit the model.
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
    # The name as the user gave it (the resolved path of a builtin model means nothing on another machine), but a
    # folder's whole path: a relative one would be looked for from wherever the adapter is used.
    folder = Path(name)
    wrapped.peft_config["default"].base_model_name_or_path = str(folder.resolve()) if folder.is_dir() else name
    return wrapped
