"""Training from a recipe, on one process or many: `d2e train`, or `accelerate launch -m d2e_sft.train RECIPE`."""

from __future__ import annotations

import logging
import random
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import torch
from accelerate import PartialState
from tqdm import tqdm
from transformers import PreTrainedModel, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from d2e_sft.errors import UserError
from d2e_sft.loading import LoadedModel, load_model
from d2e_sft.prompts import load_prompt_set
from d2e_sft.recipe import Recipe, TrainSection
from d2e_sft.sample import EventSample, read_samples
from d2e_sft.trainer import D2ETrainer
from d2e_sft.views import ViewCollator, ViewEncoder, encode_samples, pad_id

log = logging.getLogger(__name__)
BAD_ROWS_FILE = "bad_rows.jsonl"


def train_recipe(recipe: Recipe, *, resume: bool = False, overwrite: bool = False) -> Path:
    """Train, and leave model, tokenizer, resolved recipe and log history in the run folder.

    Args:
        resume: continue from the run folder's last checkpoint, if it has one.
        overwrite: train anew into a run folder that already holds a run.

    Returns:
        the run folder.

    Raises:
        UserError: bad data, an unknown model, a run folder that is already used, or a batch size that the
            number of processes does not divide.
    """
    state = PartialState()
    run = Path(recipe.train.output_dir)
    checkpoint = _starting_point(run, resume, overwrite)
    accumulation = accumulation_steps(recipe.train, state.num_processes)
    torch.manual_seed(recipe.train.seed)
    loaded = load_model(recipe.model.name, dtype=recipe.model.dtype, attention=recipe.model.attention)
    with state.local_main_process_first():
        dataset = training_dataset(recipe, loaded.tokenizer, quiet=not state.is_main_process)
    _warn_of_repeats(len(dataset), recipe.train.micro_batch_size * state.num_processes)
    if state.is_main_process:
        recipe.save(run)
    trainer = D2ETrainer(
        model=_with_adapter(recipe, loaded),
        args=training_arguments(recipe.train, accumulation),
        train_dataset=dataset,
        data_collator=ViewCollator(recipe.d2e.views, pad_id(loaded.tokenizer)),
        processing_class=loaded.tokenizer,
        d2e=recipe.d2e,
    )
    trainer.train(resume_from_checkpoint=checkpoint)
    trainer.save_model()
    trainer.save_state()
    return run


def training_dataset(recipe: Recipe, tokenizer: Any, *, quiet: bool = False) -> datasets.Dataset:
    """The recipe's training rows as token views: columns `answer` and one a view, lists of ids.

    Raises:
        UserError: as `read_samples` and `encode_samples`.
    """
    run = Path(recipe.train.output_dir)
    bad_rows = run / BAD_ROWS_FILE if recipe.data.skip_bad else None
    samples = read_samples(recipe.data.train, bad_rows_to=bad_rows)
    chosen = choose_samples(samples, recipe.data.max_samples, recipe.train.seed)
    encoder = ViewEncoder(tokenizer, load_prompt_set(recipe.data.prompt_set), recipe.d2e.views)
    encoded, dropped = encode_samples(
        chosen,
        encoder,
        max_length=recipe.data.max_length,
        overlong=recipe.data.overlong,
        progress=lambda rows: tqdm(rows, desc="tokenising", disable=quiet),
    )
    if not quiet:
        print(f"training samples: {len(encoded)} of {len(samples)} in {recipe.data.train}", flush=True)
        if dropped:
            print(f"  dropped as longer than {recipe.data.max_length} tokens: {len(dropped)}")
        if bad_rows is not None and bad_rows.is_file():
            print(f"  bad rows skipped: {sum(1 for _ in bad_rows.open())}, kept in {bad_rows}")
    rows = [{**item.prompts, "answer": item.answer} for item in encoded]
    return datasets.Dataset.from_list(rows)


def choose_samples(samples: Sequence[EventSample], limit: int | None, seed: int) -> list[EventSample]:
    """At most `limit` samples, the same number from each dataset where they have enough; seeded.

    The result keeps the order of the file, so that it depends on the seed alone.
    """
    if limit is None or limit >= len(samples):
        return list(samples)
    groups: dict[str, list[int]] = defaultdict(list)
    for i, sample in enumerate(samples):
        groups[sample.dataset].append(i)
    generator = random.Random(seed)
    for indices in groups.values():
        generator.shuffle(indices)
    chosen: list[int] = []
    # Round by round, so that a short dataset's share goes to the others.
    while len(chosen) < limit:
        for indices in groups.values():
            if indices and len(chosen) < limit:
                chosen.append(indices.pop())
    return [samples[i] for i in sorted(chosen)]


def accumulation_steps(train: TrainSection, processes: int) -> int:
    """Micro-batches a process runs for one optimiser step.

    Raises:
        UserError: `batch_size` is not a multiple of `micro_batch_size` × processes.
    """
    at_once = train.micro_batch_size * processes
    if train.batch_size % at_once:
        raise UserError(
            f"train.batch_size={train.batch_size} cannot be cut into micro-batches of "
            f"train.micro_batch_size={train.micro_batch_size} on {processes} processes",
            remedy=f"choose train.batch_size as a multiple of {at_once}, or a smaller train.micro_batch_size",
        )
    return train.batch_size // at_once


def training_arguments(train: TrainSection, accumulation: int) -> TrainingArguments:
    """transformers' TrainingArguments for a recipe's `train` section."""
    precision = resolve_precision(train.precision)
    args = TrainingArguments(
        output_dir=train.output_dir,
        seed=train.seed,
        data_seed=train.seed,
        num_train_epochs=train.epochs,
        max_steps=train.max_steps or -1,
        per_device_train_batch_size=train.micro_batch_size,
        gradient_accumulation_steps=accumulation,
        learning_rate=train.learning_rate,
        lr_scheduler_type=train.lr_scheduler,
        warmup_steps=train.warmup_ratio,
        weight_decay=train.weight_decay,
        max_grad_norm=train.max_grad_norm,
        bf16=precision == "bfloat16",
        fp16=precision == "float16",
        # TrainingArguments takes bfloat16 without an accelerator only when told that the CPU is meant.
        use_cpu=not torch.accelerator.is_available(),
        activation_checkpointing=train.gradient_checkpointing,
        logging_steps=train.logging_steps,
        logging_first_step=True,
        # A NaN must be seen, not replaced by the running mean.
        logging_nan_inf_filter=False,
        save_strategy="steps" if train.save_steps else "no",
        save_steps=train.save_steps or 500,
        save_total_limit=train.save_total_limit,
        report_to=train.report_to or "none",
        run_name=Path(train.output_dir).name,
        # The batch holds views and answers, not the model's own columns.
        remove_unused_columns=False,
        disable_tqdm=False,
    )
    # One process drives one device: DataParallel would cut a batch across its views.
    args._n_gpu = min(args.n_gpu, 1)
    return args


def resolve_precision(precision: str) -> str:
    """`auto` → bfloat16 where the device computes in it (CUDA, or a CPU with AMX), else float32."""
    if precision != "auto":
        return precision
    if torch.cuda.is_available():
        return "bfloat16" if torch.cuda.is_bf16_supported() else "float16"
    return "bfloat16" if torch.cpu._is_amx_tile_supported() else "float32"


def _starting_point(run: Path, resume: bool, overwrite: bool) -> str | None:
    last: str | None = get_last_checkpoint(str(run)) if run.is_dir() else None
    if resume:
        return last
    used = last is not None or any(
        (run / file).is_file() for file in ("config.json", "adapter_config.json", "trainer_state.json")
    )
    if used and not overwrite:
        raise UserError(
            f"{run}: already holds a run",
            remedy="continue it with --resume, train anew with --overwrite, or choose another train.output_dir",
        )
    return None


def _with_adapter(recipe: Recipe, loaded: LoadedModel) -> PreTrainedModel:
    lora = recipe.model.lora
    if lora is None:
        return loaded.model
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=lora.r,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=lora.target_modules,
        task_type="CAUSAL_LM",
    )
    model = get_peft_model(loaded.model, config)
    # The name as the user gave it: the resolved path of a builtin model means nothing on another machine.
    model.peft_config["default"].base_model_name_or_path = recipe.model.name
    return model


def _warn_of_repeats(samples: int, at_once: int) -> None:
    if PartialState().num_processes > 1 and samples % at_once:
        log.warning(
            "%d samples are not a multiple of %d (micro-batch × processes): the last batch of an epoch repeats %d "
            "samples of its beginning",
            samples,
            at_once,
            at_once - samples % at_once,
        )


if __name__ == "__main__":
    import sys

    from d2e_sft.cli import main

    main(["train", *sys.argv[1:]])
