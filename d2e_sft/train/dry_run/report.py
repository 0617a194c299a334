"""`d2e train RECIPE --dry-run`: what a recipe would do, shown without training and without writing anything.

The order is that of cost: data first, then memory, then the speed of real micro-batches, so that a run that cannot
work has been explained before it is tried.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from d2e_sft.config.recipe import Recipe
from d2e_sft.data.chat_template import pad_id
from d2e_sft.data.views import EncodedSample
from d2e_sft.model.collation import Row
from d2e_sft.model.device import usable_device
from d2e_sft.model.loading import LoadedModel
from d2e_sft.model.micro_batch import enable_checkpointing
from d2e_sft.model.packing_support import Layout, choose_layout, collator_for
from d2e_sft.model.token_budget import TokenBudgetSteps, TokenCosts
from d2e_sft.objective.attach import attach_objective
from d2e_sft.objective.bias_model import FrozenCollator, blank_states, numbered
from d2e_sft.train.dry_run.data import describe_overlong, example_indices, length_table, render_example
from d2e_sft.train.dry_run.memory import estimate_memory, on_each_device
from d2e_sft.train.dry_run.speed import (
    Drawn,
    Speed,
    average_tokens,
    draw_by_size,
    draw_by_tokens,
    hours,
    measure_speed,
    seconds_in_all,
)
from d2e_sft.train.prepare import (
    Steps,
    adapter_config,
    check_recipe,
    count_steps,
    held_out_rows,
    load_on_all,
    wrapped_in_adapter,
)
from d2e_sft.train.rows import TokenRows, dataset_row, read_rows
from d2e_sft.train.run_folder import starting_point
from d2e_sft.util.distributed import process_state
from d2e_sft.util.errors import UserError


def dry_run(
    recipe: Recipe,
    echo: Callable[[str], Any] = print,
    *,
    launcher: str | None = None,
    processes: int = 1,
    resume: bool = False,
    overwrite: bool = False,
) -> None:
    """Show the resolved recipe, samples, lengths, steps, memory and time of a run; nothing is trained or written.

    Args:
        echo: takes each line, or several at once.
        launcher: the launcher that the run is meant for, with its number of `processes`, over all machines.
        resume, overwrite: as for training; they only change what is said of the run folder.

    Raises:
        UserError: as `train_recipe`, except for rows that are too long and for the run folder: these are shown.
    """
    check_recipe(recipe, processes)
    state = process_state()
    loaded = load_on_all(recipe, state)
    training = read_rows(recipe, "training", loaded, progress=state.is_main_process, refuse=False)
    steps = count_steps(recipe.train, len(training.samples), processes)
    model = wrapped_in_adapter(loaded.model, adapter_config(recipe), recipe.model.name)
    layout = choose_layout(model, recipe.d2e, recipe.train.packing, recipe.model.attention)
    collate = collator_for(layout, recipe.d2e, model.config, pad_id(loaded.tokenizer))
    kept = training.encoded.kept
    rows = [dataset_row(item) for item in kept]
    if recipe.d2e.frozen_views:
        rows, collate = numbered(rows), FrozenCollator(collate, blank_states(model, recipe.d2e, rows))
    where = "" if launcher is None else f" (--launch {launcher} on {_count_processes(processes)})"

    def section(title: str, lines: Sequence[str]) -> None:
        echo("\n".join([f"== {title}", *lines, ""]))

    section("recipe", [recipe.as_yaml().rstrip()])
    section("run folder", [_folder_line(recipe, resume=resume, overwrite=overwrite)])
    section("samples (| prompt, not trained on; > answer, trained on)", _example_lines(training, loaded.tokenizer))
    held_out = _held_out_line(recipe, loaded)
    section("lengths", [*_count_lines(recipe, training), *length_table(training.encoded.whole), *held_out])
    drawn = _drawn(recipe, rows, kept, layout, steps)
    laid_out, apart, batches = average_tokens(rows, collate, drawn.micro_batches)
    tokens = (
        f"tokens of a micro-batch on average: {laid_out:.0f} as laid out, {apart:.0f} as separate views "
        f"({laid_out / apart:.2f} ×)"
    )
    section("layout", [layout.describe(), tokens])
    section("steps", _step_lines(recipe, steps, drawn))
    heaviest = collate([rows[i] for i in drawn.heaviest])
    section(f"memory a device{where}", _memory_lines(recipe, model, layout, heaviest, steps, launcher, drawn))
    attach_objective(model, recipe.d2e, through_logits=layout.through_logits)
    if recipe.train.gradient_checkpointing:
        enable_checkpointing(model)
    speed = _try(recipe, model, batches, heaviest, laid_out)
    section(f"time{where}", _time_lines(recipe, speed, steps, drawn))
    if speed is not None and speed.peak is not None:
        section("memory, measured", _measured_memory_lines(recipe.train.optim, speed.peak))


def _drawn(recipe: Recipe, rows: Sequence[Row], kept: Sequence[EncodedSample], layout: Layout, steps: Steps) -> Drawn:
    train = recipe.train
    if train.micro_batch_tokens is None:
        heaviest = heaviest_micro_batch(kept, layout, train.per_device_train_batch_size)
        return draw_by_size(len(rows), train.per_device_train_batch_size, steps.accumulation, heaviest)
    costs = TokenCosts.of(rows, layout, recipe.d2e.step_views)
    return draw_by_tokens(
        TokenBudgetSteps(costs, train.batch_size, train.micro_batch_tokens, seed=train.seed, processes=steps.processes)
    )


def heaviest_micro_batch(kept: Sequence[EncodedSample], layout: Layout, size: int) -> list[int]:
    """The rows of the micro-batch that takes the most memory: the longest ones, by their widest view where every row
    is padded to the widest, else by the tokens of all views."""

    def weight(i: int) -> int:
        padded = layout.packing in ("batched", "encoder_decoder")
        return kept[i].longest if padded else sum(map(len, kept[i].prompts.values()))

    return sorted(range(len(kept)), key=weight, reverse=True)[:size]


def _count_processes(processes: int) -> str:
    return f"{processes} process{'es' * (processes > 1)}"


def _folder_line(recipe: Recipe, *, resume: bool, overwrite: bool) -> str:
    run = Path(recipe.train.output_dir)
    try:
        checkpoint = starting_point(recipe, resume=resume, overwrite=overwrite)
    except UserError as error:
        return f"training would stop: {error}"
    if checkpoint is not None:
        return f"{run}: training would continue from {checkpoint.name}"
    return f"{run}: training would begin anew{' and remove the run in it' if overwrite and run.exists() else ''}"


def _example_lines(rows: TokenRows, tokenizer: Any) -> list[str]:
    lines: list[str] = []
    for which, i in example_indices(rows.encoded.kept).items():
        lines += [*render_example(which, rows.samples[i], rows.encoded.kept[i], tokenizer), ""]
    return lines[:-1]


def _count_lines(recipe: Recipe, rows: TokenRows) -> list[str]:
    lines = [f"samples: {len(rows.samples)} of {rows.in_file} in {recipe.data.train}"]
    if rows.bad_rows:
        lines.append(f"bad rows that training would skip: {len(rows.bad_rows)}")
    return [*lines, *describe_overlong(recipe, rows)]


def _held_out_line(recipe: Recipe, loaded: LoadedModel) -> list[str]:
    try:
        rows = held_out_rows(recipe, loaded, progress=False)
    except UserError as error:
        return [f"training would stop: {error}"]
    return [] if rows is None else [f"held-out samples: {len(rows.samples)} in {recipe.data.dev}"]


def _step_lines(recipe: Recipe, steps: Steps, drawn: Drawn) -> list[str]:
    train = recipe.train
    if train.micro_batch_tokens is None:
        cut = f"{steps.accumulation} micro-batches of {train.per_device_train_batch_size}"
    else:
        samples = sum(map(len, drawn.micro_batches)) / len(drawn.micro_batches)
        cut = (
            f"{drawn.of_a_step:.3g} micro-batches of at most {train.micro_batch_tokens} tokens ({samples:.3g} samples "
            "on average)"
        )
    saving = f"every {train.save_steps} steps, the last {train.save_total_limit} kept" if train.save_steps else "none"
    evaluating = f"every {train.eval_steps} steps" if train.eval_steps else "after each epoch"
    held_out = f"{evaluating}, on {recipe.data.dev}" if recipe.data.dev else "none (data.dev names no held-out rows)"
    return [
        f"{steps.samples} samples / batch {train.batch_size} = {steps.per_epoch} optimiser steps an epoch",
        f"{steps.total} optimiser steps in all ({steps.total / steps.per_epoch:g} epochs), {steps.warmup} of them "
        f"warm-up",
        f"a step: {cut} on {_count_processes(steps.processes)}",
        f"logged every {train.logging_steps} steps; checkpoints: {saving}",
        f"evaluations on the way: {held_out}",
    ]


def _memory_lines(
    recipe: Recipe,
    model: Any,
    layout: Layout,
    batch: dict[str, Any],
    steps: Steps,
    launcher: str | None,
    drawn: Drawn,
) -> list[str]:
    device, accumulation = usable_device(), math.ceil(drawn.of_a_step)
    try:
        alone = estimate_memory(model, recipe.d2e, layout, batch, recipe.train, accumulation, device)
    except (RuntimeError, NotImplementedError, TypeError) as error:
        return [f"not estimated: {type(model).__name__} cannot be run without data ({str(error).splitlines()[0]})"]
    memory, on_host = (alone, 0) if launcher is None else on_each_device(alone, launcher, steps.processes)
    parts = [
        ("weights", memory.weights),
        ("gradients", memory.gradients),
        ("optimiser state", memory.optimizer),
        ("activations", memory.activations),
    ]
    lines = [f"{name:<16}{gibibytes(size):>12}" for name, size in parts]
    lines.append(f"{'at the peak':<16}{gibibytes(memory.total):>12}  estimated, on {_device_name(device)}")
    if on_host:
        lines.append(f"{'in host memory':<16}{gibibytes(on_host):>12}  a process")
    laid_out, apart = batch["input_ids"].numel(), batch["view_tokens"]
    lines.append(
        f"for the heaviest micro-batch, {'of ' if recipe.train.micro_batch_tokens else 'the '}{len(batch['labels'])} "
        f"{'' if recipe.train.micro_batch_tokens else 'longest '}samples: {laid_out} tokens laid out, "
        f"{apart} as separate views"
    )
    lines.append("beside it a process holds Python and its libraries, about 0.5 GiB, and on a GPU its context")
    if device.type == "cpu":
        lines.append(
            "glibc keeps freed blocks, so a process grows further, most with an adapter: measured below; "
            "MALLOC_MMAP_THRESHOLD_=131072 in the environment holds it to the estimate and is slower"
        )
    return lines


def gibibytes(size: int) -> str:
    """`1.25 GiB`; small sizes in MiB."""
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 / 10 else f"{size / 2**20:.1f} MiB"


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _try(
    recipe: Recipe, model: Any, batches: list[dict[str, Any]], heaviest: dict[str, Any], tokens_each: float
) -> Speed | None:
    """None where a micro-batch does not fit the device."""
    try:
        return measure_speed(model, [*batches, *batches][:4], heaviest, tokens_each, recipe.train, usable_device())
    except torch.OutOfMemoryError:
        return None


def _time_lines(recipe: Recipe, speed: Speed | None, steps: Steps, drawn: Drawn) -> list[str]:
    device = usable_device()
    if speed is None:
        return [f"not measured: a micro-batch does not fit {_device_name(device)}"]
    cut = drawn.of_a_step if recipe.train.micro_batch_tokens else 1.0
    lines = [
        f"{hours(seconds_in_all(speed, steps, cut))} in all, without loading and saving",
        f"a micro-batch {speed.per_micro_batch:.2f} s, the optimiser's step {speed.per_step:.2f} s",
        f"measured on this machine ({_device_name(device)}), 1 process, over {speed.micro_batches} micro-batches",
    ]
    if steps.processes > 1:
        lines.append(f"the time in all is this machine's, divided over {steps.processes} processes (scaling linearly)")
    return lines


def _measured_memory_lines(optim: str, peak: int) -> list[str]:
    device = usable_device()
    of = "what this process grew by, its weights included" if device.type == "cpu" else "of torch's allocator"
    moments = "" if "adamw_torch" in optim else f"; with AdamW's moments, not those of {optim}"
    return [
        f"{'at the peak':<16}{gibibytes(peak):>12}  {of}, on {_device_name(device)}, 1 process",
        f"over the micro-batches of the time above, an optimiser step and the heaviest micro-batch{moments}",
    ]
