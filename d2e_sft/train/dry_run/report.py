"""`d2e train RECIPE --dry-run`: show a recipe's data, then time and memory of a few micro-batches; write nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from d2e_sft.config.recipe import Recipe
from d2e_sft.data.prompts import DEFAULT, NEUTRAL, load_prompt_set
from d2e_sft.model.loading import LoadedModel
from d2e_sft.train.checks import count_processes, loads_whole_steps, notes_on_steps
from d2e_sft.train.dry_run.cards import CARDS, HERE, Where
from d2e_sft.train.dry_run.costs import measure_speed, memory_lines, not_estimated, time_lines
from d2e_sft.train.dry_run.examples import example_lines, length_table
from d2e_sft.train.dry_run.fit import LAUNCHERS, fits_on, load_of, memory_table, time_table, utilisation_of
from d2e_sft.train.dry_run.plan import Plan, Planned, draw, heaviest_line, planned
from d2e_sft.train.dry_run.tokens import per_word
from d2e_sft.train.rows import TokenRows, describe_rows, read_rows
from d2e_sft.train.run_folder import starting_point
from d2e_sft.util.errors import UserError
from d2e_sft.util.terminal import folded


def dry_run(
    recipe: Recipe,
    echo: Callable[[str], object],
    where: Where = HERE,
    *,
    resume: bool = False,
    overwrite: bool = False,
) -> None:
    """Show the resolved recipe, samples, lengths, steps, memory and time of a run.

    Args:
        echo: prints one or several lines.
        resume, overwrite: as for training.

    Raises:
        UserError: as `train_recipe`, without the checks of `check_recipe`; overlong rows and an unsuitable run folder
            are shown instead.
    """
    made = planned(recipe, where)
    plan, training, loaded = made.plan, made.training, made.loaded
    legend = "| prompt, not trained on; > answer, trained on" + "; < rejected answer" * recipe.d2e.prefers

    def section(title: str, lines: Sequence[str]) -> None:
        echo("\n".join([f"== {title}", *map(folded, lines), ""]))

    echo(f"== recipe\n{recipe.as_yaml().rstrip()}\n")
    if where.like is not None:
        section("model", _model_lines(where, loaded, training))
    section("run folder", [_folder_line(recipe, resume=resume, overwrite=overwrite)])
    section(f"samples ({legend})", _sample_lines(recipe, training, loaded))
    section("lengths", _length_lines(recipe, training, loaded))
    section("layout", [*_layout_lines(plan, where), *_lines_about_contexts(made)])
    notes = [*notes_on_steps(recipe.train, plan.steps), *made.drawn.notes]
    section("steps", [*_step_lines(plan), *(f"warning: {note}" for note in notes)])
    if where.gpu is not None:
        memory, time = _lines_of_a_card(plan, where)
    else:
        speed = measure_speed(plan) if where.reads_weights else None
        memory, time = memory_lines(plan, speed), time_lines(plan, speed)
    section(f"memory per device{where}", memory)
    section(f"time{where}", time)


def _model_lines(where: Where, loaded: LoadedModel, rows: TokenRows) -> list[str]:
    size = sum(parameter.numel() for parameter in loaded.model.parameters())
    tokens = per_word(loaded.tokenizer, rows.samples)
    how = "estimated by word lengths; --tokenizer NAME counts them"
    if where.tokenizer is not None:
        how = f"counted by the tokenizer of {where.tokenizer}"
    return [f"the shape of {where.like}: {size:,} parameters", f"{tokens:.2f} tokens per word, {how}"]


def _lines_of_a_card(plan: Plan, where: Where) -> tuple[list[str], list[str]]:
    """Return the lines about memory and time on the cards of `where`."""
    assert where.gpu is not None
    card, launchers = CARDS[where.gpu], LAUNCHERS if where.launcher is None else (where.launcher,)
    try:
        load = load_of(plan)
    except (RuntimeError, NotImplementedError, TypeError) as error:
        return [not_estimated(plan, error)], ["not estimated"]
    share = where.utilisation or utilisation_of(plan.model)
    fits = fits_on(card, load, launchers, where.processes, share)
    time = time_table(fits, card, share)
    if plan.recipe.train.precision == "float32":
        time = ["not estimated: the rates of cards are for 16 bits, and this run computes in float32"]
    remedies = [] if any(fit.fits for fit in fits) else [_remedy_line(plan)]
    return [*memory_table(fits, card), *remedies, heaviest_line(plan)], time


def _remedy_line(plan: Plan) -> str:
    train, model = plan.recipe.train, plan.recipe.model
    untried = {
        "train.gradient_checkpointing=true": not train.gradient_checkpointing,
        "a smaller train.micro_batch_tokens": train.micro_batch_tokens is not None,
        "train.per_device_train_batch_size=1": len(plan.heaviest["labels"]) > 1 and train.micro_batch_tokens is None,
        "an adapter (model.lora={})": model.lora is None,
        "model.dtype=bfloat16": model.lora is not None and model.dtype == "float32",
    }
    listed = "".join(f"{what}, " for what, applies in untried.items() if applies)
    return f"to make it fit, try {listed}{'or ' if listed else ''}more --processes"


def _layout_lines(plan: Plan, where: Where) -> list[str]:
    laid_out, apart = plan.average_tokens
    unchecked = [] if where.reads_weights else ["whether packed rows are exact is checked only with weights"]
    tokens = f"{laid_out:.0f} as laid out, {apart:.0f} as separate views ({laid_out / apart:.2f} ×)"
    return [plan.layout.describe(), *unchecked, f"average tokens of a micro-batch: {tokens}"]


def _lines_about_contexts(made: Planned) -> list[str]:
    """Say how many tokens of an epoch rows with the same context save, if they are drawn together."""
    plan, rows, train = made.plan, made.rows, made.plan.recipe.train
    if train.rows_per_context == 1 or made.drawn.notes:
        return []
    singly = plan.recipe.model_copy(update={"train": train.model_copy(update={"rows_per_context": 1})})
    ours, theirs = (
        sum(made.collate([rows[i] for i in part])["input_ids"].numel() for part in one.micro_batches)
        / sum(map(len, one.micro_batches))  # under a launcher they are those of one process
        for one in (made.drawn, draw(singly, rows, plan.layout, plan.steps))
    )
    return [f"tokens per row: {ours:.0f}, {ours / theirs:.2f} × those of rows drawn singly ({theirs:.0f})"]


def _folder_line(recipe: Recipe, *, resume: bool, overwrite: bool) -> str:
    run = Path(recipe.train.output_dir)
    try:
        checkpoint = starting_point(recipe, resume=resume, overwrite=overwrite)
    except UserError as error:
        return f"training would stop: {error}"
    if checkpoint is not None:
        return f"{run}: training would continue from {checkpoint.name}"
    if overwrite and run.exists():
        return f"{run}: training would start over and remove the run in it"
    return f"{run}: training would start{'' if run.exists() else ' in this new folder'}"


def _sample_lines(recipe: Recipe, rows: TokenRows, loaded: LoadedModel) -> list[str]:
    """Three samples, and how many rows have another wording than the recipe names."""
    named = load_prompt_set(recipe.data.prompt_set, recipe.data.form)
    neutral = sum(sample.format != "chat" and named.set_for(sample) is not named for sample in rows.samples)
    of = f"{neutral:,} of {len(rows.samples):,} rows, which are not about events"
    note = [f"wording: the prompt set {NEUTRAL} instead of {DEFAULT} in {of}"] if neutral else []
    return [*note, *example_lines(rows, loaded.tokenizer)]


def _length_lines(recipe: Recipe, rows: TokenRows, loaded: LoadedModel) -> list[str]:
    """Lines about the rows, which were read without refusing any, and what training would do about them."""
    data, whole, lines = recipe.data, rows.encoded.whole, describe_rows(recipe, "training", rows)
    if rows.encoded.dropped and data.overlong != "drop":
        or_cut = " or truncate_context" if data.overlong == "error" else ""
        lines.append(
            f"  training would stop: data.overlong={data.overlong} allows no sample over data.max_length="
            f"{data.max_length}; raise it to {max(item.longest for item in whole)}, or set data.overlong=drop{or_cut}"
        )
    lines += length_table(whole)
    try:
        held_out = read_rows(recipe, "dev", loaded, progress=False) if data.dev else None
    except UserError as error:
        return [*lines, f"training would stop: {error}"]
    return lines if held_out is None else [*lines, *describe_rows(recipe, "dev", held_out)]


def _step_lines(plan: Plan) -> list[str]:
    train, data, steps = plan.recipe.train, plan.recipe.data, plan.steps
    cut = f"{steps.accumulation} micro-batches of {steps.micro_batch}"
    if loads_whole_steps(train):
        samples = sum(len(batch["labels"]) for batch in plan.batches) / len(plan.batches)
        tokens = train.micro_batch_tokens
        budget = f"{tokens} tokens" if tokens else f"{steps.micro_batch} samples"
        cut = f"{plan.of_a_step:.3g} micro-batches of at most {budget} ({samples:.3g} samples on average)"
    alike = f", up to {train.rows_per_context} with the same context together" if train.rows_per_context > 1 else ""
    saving = f"every {train.save_steps} steps, the last {train.save_total_limit} kept" if train.save_steps else "none"
    evaluating = f"every {train.eval_steps} steps" if train.eval_steps else "after each epoch"
    return [
        f"{steps.samples} samples / batch {train.batch_size}{alike} = {steps.per_epoch} optimiser steps per epoch",
        f"{steps.total} optimiser steps in all ({steps.total / steps.per_epoch:g} epochs), {steps.warmup} of them "
        f"warm-up",
        f"a step: {cut} on {count_processes(steps.processes)}",
        f"logs every {train.logging_steps} steps; checkpoints: {saving}",
        f"evaluations: {f'{evaluating}, on {data.dev}' if data.dev else 'none (data.dev is not set)'}",
    ]
