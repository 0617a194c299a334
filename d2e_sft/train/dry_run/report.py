"""`d2e train RECIPE --dry-run`: show what a recipe would do, without training or writing anything.

Sections come in the order of their cost: data first, then a few real micro-batches for time and memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from d2e_sft.config.recipe import Recipe
from d2e_sft.data.chat_template import pad_id
from d2e_sft.model.forward import bare_model
from d2e_sft.model.loading import LoadedModel
from d2e_sft.model.micro_batch import enable_checkpointing
from d2e_sft.model.packing_support import choose_layout, collator_for
from d2e_sft.objective.attach import attach_objective
from d2e_sft.objective.bias_model import FrozenCollator, blank_states, numbered
from d2e_sft.train.dry_run.costs import Plan, memory_lines, time_lines
from d2e_sft.train.dry_run.data import describe_overlong, example_lines, length_table
from d2e_sft.train.dry_run.speed import Speed, draw, measure_speed
from d2e_sft.train.prepare import adapter_config, check_recipe, count_steps, load_on_all, wrapped_in_adapter
from d2e_sft.train.rows import TokenRows, dataset_row, read_rows
from d2e_sft.train.run_folder import starting_point
from d2e_sft.util.distributed import process_state
from d2e_sft.util.errors import UserError


def dry_run(
    recipe: Recipe,
    echo: Callable[[str], object],
    *,
    launcher: str | None = None,
    processes: int = 1,
    resume: bool = False,
    overwrite: bool = False,
) -> None:
    """Show the resolved recipe, samples, lengths, steps, memory and time of a run.

    Args:
        echo: prints one or several lines.
        launcher, processes: how the run would be launched, with processes over all machines.
        resume, overwrite: as for training.

    Raises:
        UserError: as `train_recipe`; overlong rows and an unsuitable run folder are shown instead.
    """
    check_recipe(recipe, processes)
    state = process_state()
    loaded = load_on_all(recipe, state)
    training = read_rows(recipe, "training", loaded, progress=state.is_main_process, refuse=False)
    model = wrapped_in_adapter(loaded.model, adapter_config(recipe), recipe.model.name)
    layout = choose_layout(model, recipe.d2e, recipe.train.packing, recipe.model.attention)
    collate = collator_for(layout, recipe.d2e, model.config, pad_id(loaded.tokenizer))
    rows = [dataset_row(item) for item in training.encoded.kept]
    if recipe.d2e.frozen_views:
        rows, collate = numbered(rows), FrozenCollator(collate, blank_states(model, recipe.d2e, rows))
    where = "" if launcher is None else f" (--launch {launcher} on {_count_processes(processes)})"

    def section(title: str, lines: Sequence[str]) -> None:
        echo("\n".join([f"== {title}", *lines, ""]))

    section("recipe", [recipe.as_yaml().rstrip()])
    section("run folder", [_folder_line(recipe, resume=resume, overwrite=overwrite)])
    section("samples (| prompt, not trained on; > answer, trained on)", example_lines(training, loaded.tokenizer))
    section("lengths", _length_lines(recipe, training, loaded))
    steps = count_steps(recipe.train, len(training.samples), processes)
    drawn = draw(recipe, rows, layout, steps)
    batches = [collate([rows[i] for i in part]) for part in drawn.micro_batches]
    laid_out = sum(batch["input_ids"].numel() for batch in batches) / len(batches)
    apart = sum(batch["view_tokens"] for batch in batches) / len(batches)
    tokens = (
        f"average tokens of a micro-batch: {laid_out:.0f} as laid out, {apart:.0f} as separate views "
        f"({laid_out / apart:.2f} ×)"
    )
    plan = Plan(recipe, model, layout, steps, drawn, collate([rows[i] for i in drawn.heaviest]), launcher)
    section("layout", [layout.describe(), tokens])
    section("steps", _step_lines(plan))
    speed = _measured(plan, batches, laid_out)
    section(f"memory per device{where}", memory_lines(plan, speed))
    section(f"time{where}", time_lines(plan, speed))


def _measured(plan: Plan, batches: list[dict[str, Any]], tokens_each: float) -> Speed | None:
    """Try a few micro-batches; None if one does not fit the device."""
    recipe, model = plan.recipe, plan.model
    attach_objective(model, recipe.d2e, through_logits=plan.layout.through_logits)
    if recipe.train.gradient_checkpointing:
        enable_checkpointing(model)
    try:
        return measure_speed(model, [*batches, *batches][:4], plan.heaviest, tokens_each, recipe.train)
    except torch.OutOfMemoryError:
        return None
    finally:
        model.zero_grad()
        del bare_model(model).forward  # the objective's


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
    return f"{run}: training would start over{' and remove the run in it' if overwrite and run.exists() else ''}"


def _length_lines(recipe: Recipe, rows: TokenRows, loaded: LoadedModel) -> list[str]:
    lines = [f"samples: {len(rows.samples)} of {rows.in_file} in {recipe.data.train}"]
    if rows.bad_rows:
        lines.append(f"bad rows that training would skip: {len(rows.bad_rows)}")
    lines += [*describe_overlong(recipe, rows), *length_table(rows.encoded.whole)]
    if recipe.data.dev:
        try:
            held_out = read_rows(recipe, "dev", loaded, progress=False)
        except UserError as error:
            return [*lines, f"training would stop: {error}"]
        lines.append(f"held-out samples: {len(held_out.samples)} in {recipe.data.dev}")
    return lines


def _step_lines(plan: Plan) -> list[str]:
    train, data, steps, drawn = plan.recipe.train, plan.recipe.data, plan.steps, plan.drawn
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
    return [
        f"{steps.samples} samples / batch {train.batch_size} = {steps.per_epoch} optimiser steps per epoch",
        f"{steps.total} optimiser steps in all ({steps.total / steps.per_epoch:g} epochs), {steps.warmup} of them "
        f"warm-up",
        f"a step: {cut} on {_count_processes(steps.processes)}",
        f"logs every {train.logging_steps} steps; checkpoints: {saving}",
        f"evaluations: {f'{evaluating}, on {data.dev}' if data.dev else 'none (data.dev is not set)'}",
    ]
