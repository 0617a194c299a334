"""Checks and counts of a run that need no model; nothing here imports torch, so a mistake is reported at once."""

import math
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from d2e_sft.config.functions import load_with_options
from d2e_sft.config.objectives import ARGUMENTS, BASE, is_own
from d2e_sft.config.recipe import Recipe
from d2e_sft.config.sections import TrainSection, fitting_micro_batch
from d2e_sft.data.data_record import TOKENS
from d2e_sft.data.foreign import refuse_foreign
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.rows import file_of
from d2e_sft.data.sample import check_readable
from d2e_sft.model.storage.folder import check_model_name
from d2e_sft.util.errors import UserError
from d2e_sft.util.paths import refuse_no_place

# Names of optimisers → the module that transformers imports for them, and its package.
_OPTIMIZER_PACKAGES = {
    r"adamw_torch_[48]bit": ("torchao", "torchao"),
    r".*_8bit|paged_.*|lion_.*|ademamix": ("bitsandbytes", "bitsandbytes"),
    r"schedule_free_.*": ("schedulefree", "schedulefree"),
    r"stable_adamw": ("optimi", "torch-optimi"),
    r"grokadamw": ("grokadamw", "grokadamw"),
}
# Modules of trackers that have another name or an alternative.
_TRACKER_MODULES = {"tensorboard": ("tensorboard", "tensorboardX")}


@dataclass(frozen=True)
class Steps:
    """Counts of one run, as in transformers' Trainer."""

    samples: int
    processes: int
    micro_batch: int  # samples of a forward pass on a process
    accumulation: int  # micro-batches per optimiser step and process
    micro_batches: int  # per epoch and process
    per_epoch: int  # optimiser steps
    total: int
    warmup: int


FEW_STEPS = 25  # the tutorials learn in 28 and 30 steps; 12 were too few (docs/reference/training.md)


def notes_on_steps(recipe: Recipe, steps: Steps) -> list[str]:
    """Return warnings: the epochs make so few steps that a model learns little, or processes repeat samples."""
    train, notes, at_once = recipe.train, list[str](), steps.micro_batch * steps.processes
    if train.max_steps <= 0 and steps.total < FEW_STEPS:
        notes.append(
            f"{steps.total} optimiser steps are few: under {FEW_STEPS} a model learns little; remedy: "
            f"train.num_train_epochs={math.ceil(FEW_STEPS / steps.per_epoch)}"
        )
    if steps.processes > 1 and not loads_whole_steps(recipe) and steps.samples % at_once:
        notes.append(
            f"{steps.samples} samples are not a multiple of {at_once} (micro-batch × processes): the last batch of an "
            f"epoch repeats {at_once - steps.samples % at_once} samples of its beginning"
        )
    return notes


def count_processes(processes: int) -> str:
    """Return `1 process` or `2 processes`."""
    return f"{processes} process{'es' * (processes > 1)}"


def loads_whole_steps(recipe: Recipe) -> bool:
    """Whether a process loads its share of a step at once: our own loader draws the rows, and cuts them."""
    train = recipe.train
    return train.micro_batch_tokens is not None or train.rows_per_context > 1 or recipe.data.balance is not None


def count_steps(recipe: Recipe, samples: int, processes: int, *, drop_last: bool = False) -> Steps:
    """Optimiser steps of a run over `samples` rows; a step that is loaded at once counts as one micro-batch.

    `drop_last` leaves out the rows of an epoch that do not fill a micro-batch on each process.
    """
    train = recipe.train
    accumulation, micro_batch = accumulation_steps(recipe, processes), shared_micro_batch(train, processes)
    at_once = train.batch_size // processes if loads_whole_steps(recipe) else micro_batch
    if drop_last:
        samples -= samples % (at_once * processes)
    micro_batches = math.ceil(math.ceil(samples / at_once) / processes)
    per_epoch = max(1, math.ceil(micro_batches / accumulation))
    total = train.max_steps if train.max_steps > 0 else math.ceil(train.num_train_epochs * per_epoch)
    warmup = int(train.warmup_steps) if train.warmup_steps >= 1 else math.ceil(total * train.warmup_steps)
    return Steps(samples, processes, micro_batch, accumulation, micro_batches, per_epoch, total, warmup)


def shared_micro_batch(train: TrainSection, processes: int) -> int:
    """Return the samples of a forward pass.

    It is `per_device_train_batch_size`, or less if that divides the batch, but not each process's share of it.
    """
    size, batch = train.per_device_train_batch_size, train.batch_size
    is_shared = batch % size == batch % processes == 0
    return fitting_micro_batch(batch // processes, size) if is_shared else int(size)


def accumulation_steps(recipe: Recipe, processes: int) -> int:
    """Return the micro-batches per optimiser step and process.

    It is 1 if a process loads its share of a step at once, see `loads_whole_steps`. Raises UserError if `batch_size`
    cannot be split over the processes, in micro-batches of equal size.
    """
    train, at_once = recipe.train, loads_whole_steps(recipe)
    batch = train.batch_size
    size = 1 if at_once else shared_micro_batch(train, processes)
    if batch % (size * processes):
        key, fewer = "train.per_device_train_batch_size", max(n for n in range(1, processes + 1) if batch % n == 0)
        shares = sorted({batch // processes, -(-batch // processes)} - {0})
        fitting = ["" if at_once else f" {key}={fitting_micro_batch(share, size)}" for share in shares]
        choices = [
            f"train.batch_size={share * processes}{size_too}" for share, size_too in zip(shares, fitting, strict=True)
        ]
        start = f", or start {count_processes(fewer)}" if fewer < processes else ""
        parts = "" if at_once else f" in micro-batches of {key}={size}"
        raise UserError(
            f"train.batch_size={batch} cannot be split over {count_processes(processes)}{parts}",
            remedy=f"set {' or '.join(choices)}{start}",
        )
    return 1 if at_once else batch // (size * processes)


def check_recipe(recipe: Recipe, processes: int) -> None:
    """Check all that needs neither a model nor torch.

    Raises UserError if a file, a model's folder, the prompt set or an own objective is missing, or a file holds other
    rows. Also if the run's folder cannot be written, for random weights with an adapter, or for float16 weights.
    """
    model, data = recipe.model, recipe.data
    if model.weights == "random" and model.lora is not None:
        raise UserError(
            "model.weights=random with model.lora: an adapter is saved without its base weights, and random weights "
            "cannot be restored",
            remedy="train all weights (model.lora=null; --method sft or d2e)",
        )
    if model.dtype == "float16":
        raise UserError(
            "model.dtype=float16: gradients of float16 weights underflow; expected float32 or bfloat16 weights",
            remedy="keep model.dtype=float32 and set train.fp16=true for mixed precision",
        )
    run = Path(recipe.train.output_dir)
    refuse_no_place(run, f"train.output_dir={str(run)!r}", "the run", "choose another train.output_dir")
    if data.train.endswith(TOKENS):
        raise UserError(
            f"data.train={data.train}: the rows of this run were given as tokens, so there is no file of them",
            remedy="train or continue it from Python, or name a file of rows: data.train=FILE",
        )
    files = [file_of(data.train), *([file_of(data.dev, "dev")] if data.dev else [])]
    for file in [*files, *([Path(data.probe)] if data.probe else [])]:
        check_readable(file)
        refuse_foreign(file, first_row=not data.skip_bad)
    load_prompt_set(data.prompt_set, data.form)
    check_model_name(model.name)
    if recipe.d2e.other_model not in (None, BASE):
        try:
            check_model_name(str(recipe.d2e.other_model))
        except UserError as error:
            raise UserError(f"d2e.prefer_reference={recipe.d2e.other_model}: {error.message}", error.remedy) from None
    if is_own(recipe.d2e.objective):
        load_with_options("objective", recipe.d2e.objective, ARGUMENTS)
    check_optimizer(recipe.train.optim)
    accumulation_steps(recipe, processes)


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


@contextmanager
def trackers(names: Sequence[str], project: str) -> Iterator[None]:
    """Check that the trackers of `train.report_to` are installed, and set wandb's project inside the block.

    transformers reads it from the environment, which is restored after the block; WANDB_PROJECT overrides `project`.
    """
    for name in names:
        if not any(find_spec(module) for module in _TRACKER_MODULES.get(name, (name,))):
            raise UserError(
                f"train.report_to={name}: the package {name} is not installed",
                remedy=f"pip install {name}, or take {name} out of train.report_to",
            )
    named_here = "wandb" in names and "WANDB_PROJECT" not in os.environ
    if named_here:
        os.environ["WANDB_PROJECT"] = project
    try:
        yield
    finally:
        if named_here:
            os.environ.pop("WANDB_PROJECT", None)
