"""`d2e train RECIPE --dry-run`: show a recipe's data, then time and memory of a few micro-batches; write nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from d2e_sft.config.recipe import Recipe
from d2e_sft.data.chat_template import pad_id
from d2e_sft.data.sample import EventSample
from d2e_sft.data.views import EncodedSample
from d2e_sft.model.collation import Row
from d2e_sft.model.loading import LoadedModel
from d2e_sft.model.packing import pack
from d2e_sft.model.packing_support import choose_layout, collator_for
from d2e_sft.objective.bias_model import (
    FrozenCollator,
    blank_states,
    numbered,
    warn_if_trained_with_contexts,
    with_column,
)
from d2e_sft.objective.reference import REFERENCE
from d2e_sft.train.checks import count_steps, loads_whole_steps
from d2e_sft.train.dry_run.costs import DRAWS, Drawn, Plan, draw, measure_speed, memory_lines, time_lines
from d2e_sft.train.prepare import adapter_config, load_on_all, settle_recipe, wrapped_in_adapter
from d2e_sft.train.rows import TokenRows, check_pairs, describe_rows, read_rows
from d2e_sft.train.run_folder import starting_point
from d2e_sft.util.distributed import process_state
from d2e_sft.util.errors import UserError
from d2e_sft.util.terminal import filled, folded, terminal_width

PERCENTILES = (50, 90, 95, 99, 100)


@dataclass(frozen=True)
class Where:
    """How a run would be launched.

    Attributes:
        processes: Over all machines.
        weights: False reads no weights here: memory is estimated, and nothing is timed.
    """

    launcher: str | None = None
    processes: int = 1
    weights: bool = True


def dry_run(
    recipe: Recipe,
    echo: Callable[[str], object],
    where: Where = Where(),
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
    state = process_state()
    settle_recipe(recipe)
    loaded = load_on_all(recipe, state, weights=where.weights)
    training = read_rows(recipe, "training", loaded, progress=state.is_main_process, refuse=False)
    adapter = adapter_config(recipe)
    if adapter is not None and not where.weights:
        adapter.init_lora_weights = True  # other initial values are computed from the weights
    model = wrapped_in_adapter(loaded.model, adapter, recipe.model.name)
    layout = choose_layout(model, recipe.d2e, recipe.train.packing, recipe.model.attention)
    collate = collator_for(layout, recipe.d2e, model.config, pad_id(loaded.tokenizer))
    rows = training.dataset
    if recipe.d2e.prefers:
        check_pairs(rows)
    if recipe.d2e.needs_reference:  # of any value
        rows = with_column(rows, REFERENCE, [[0.0, 0.0]] * len(rows))
    if recipe.d2e.frozen_views:
        warn_if_trained_with_contexts(recipe.d2e)
        rows, collate = numbered(rows), FrozenCollator(collate, blank_states(model, recipe.d2e, rows))
    legend = "| prompt, not trained on; > answer, trained on" + "; < rejected answer" * recipe.d2e.prefers
    on = "" if where.launcher is None else f" (--launch {where.launcher} on {_count_processes(where.processes)})"

    def section(title: str, lines: Sequence[str]) -> None:
        echo("\n".join([f"== {title}", *map(folded, lines), ""]))

    echo(f"== recipe\n{recipe.as_yaml().rstrip()}\n")
    section("run folder", [_folder_line(recipe, resume=resume, overwrite=overwrite)])
    section(f"samples ({legend})", example_lines(training, loaded.tokenizer))
    section("lengths", _length_lines(recipe, training, loaded))
    steps = count_steps(recipe.train, len(training.samples), where.processes)
    drawn = draw(recipe, rows, layout, steps)
    batches = [collate([rows[i] for i in part]) for part in drawn.micro_batches[:DRAWS]]
    heaviest = collate([rows[i] for i in drawn.heaviest])
    plan = Plan(recipe, model, layout, steps, batches, heaviest, drawn.of_a_step, where.launcher)
    section("layout", [*_layout_lines(plan, where), *_lines_about_contexts(plan, drawn, rows, collate)])
    section("steps", [*_step_lines(plan), *(f"warning: {note}" for note in drawn.notes)])
    speed = measure_speed(plan) if where.weights else None
    section(f"memory per device{on}", memory_lines(plan, speed))
    section(f"time{on}", time_lines(plan, speed))


def _layout_lines(plan: Plan, where: Where) -> list[str]:
    laid_out, apart = plan.average_tokens
    unchecked = [] if where.weights else ["whether packed rows are exact is checked only with weights"]
    tokens = f"{laid_out:.0f} as laid out, {apart:.0f} as separate views ({laid_out / apart:.2f} ×)"
    return [plan.layout.describe(), *unchecked, f"average tokens of a micro-batch: {tokens}"]


def _lines_about_contexts(plan: Plan, drawn: Drawn, rows: Sequence[Row], collate: Any) -> list[str]:
    """Say how many tokens of an epoch rows with the same context save, if they are drawn together."""
    train = plan.recipe.train
    if train.rows_per_context == 1 or drawn.notes:
        return []
    singly = plan.recipe.model_copy(update={"train": train.model_copy(update={"rows_per_context": 1})})
    ours, theirs = (
        sum(collate([rows[i] for i in part])["input_ids"].numel() for part in one.micro_batches)
        / sum(map(len, one.micro_batches))  # under a launcher they are those of one process
        for one in (drawn, draw(singly, rows, plan.layout, plan.steps))
    )
    return [f"tokens per row: {ours:.0f}, {ours / theirs:.2f} × those of rows drawn singly ({theirs:.0f})"]


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
    cut = f"{steps.accumulation} micro-batches of {train.per_device_train_batch_size}"
    if loads_whole_steps(train):
        samples = sum(len(batch["labels"]) for batch in plan.batches) / len(plan.batches)
        tokens = train.micro_batch_tokens
        budget = f"{tokens} tokens" if tokens else f"{train.per_device_train_batch_size} samples"
        cut = f"{plan.of_a_step:.3g} micro-batches of at most {budget} ({samples:.3g} samples on average)"
    alike = f", up to {train.rows_per_context} with the same context together" if train.rows_per_context > 1 else ""
    saving = f"every {train.save_steps} steps, the last {train.save_total_limit} kept" if train.save_steps else "none"
    evaluating = f"every {train.eval_steps} steps" if train.eval_steps else "after each epoch"
    return [
        f"{steps.samples} samples / batch {train.batch_size}{alike} = {steps.per_epoch} optimiser steps per epoch",
        f"{steps.total} optimiser steps in all ({steps.total / steps.per_epoch:g} epochs), {steps.warmup} of them "
        f"warm-up",
        f"a step: {cut} on {_count_processes(steps.processes)}",
        f"logs every {train.logging_steps} steps; checkpoints: {saving}",
        f"evaluations: {f'{evaluating}, on {data.dev}' if data.dev else 'none (data.dev is not set)'}",
    ]


def length_table(whole: Sequence[EncodedSample]) -> list[str]:
    """Percentiles of token counts before the length rule, as lines of a table."""
    rows: dict[str, list[int]] = {"longest view + answer": [item.longest for item in whole]}
    for view in whole[0].prompts:
        rows[f"prompt, {view}"] = [len(item.prompts[view]) for item in whole]
    rows["answer"] = [len(item.answer) for item in whole]
    if rejected := [len(item.rejected) for item in whole if item.rejected]:
        rows["rejected answer"] = rejected
    head = "".join(f"{'max' if p == 100 else f'p{p}':>7}" for p in PERCENTILES)
    lines = [f"{'tokens':<24}{head}"]
    for name, lengths in rows.items():
        ranked = np.percentile(lengths, PERCENTILES, method="inverted_cdf")  # nearest ranks
        lines.append(f"{name:<24}" + "".join(f"{value:>7}" for value in ranked))
    return lines


def example_lines(rows: TokenRows, tokenizer: Any) -> list[str]:
    """Three samples as lines: the first, one of middle length, and the longest."""
    kept, lines = rows.encoded.kept, []
    by_length = sorted(range(len(kept)), key=lambda i: kept[i].longest)
    for which, i in (("first", 0), ("of middle length", by_length[len(kept) // 2]), ("longest", by_length[-1])):
        lines += [*render_example(which, rows.samples[i], kept[i], tokenizer), ""]
    return lines[:-1]


def render_example(which: str, sample: EventSample, encoded: EncodedSample, tokenizer: Any) -> list[str]:
    """A sample as lines: each view's tokens decoded, special tokens too, and what of them is trained on."""
    sequences = [[*prompt, *encoded.answer] for prompt in encoded.prompts.values()]
    separate = sum(map(len, sequences))
    lines = [f"{which}: {sample.id} ({sample.dataset}, {sample.format})"]
    if len(sequences) > 1:
        shared = sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, zip(*sequences, strict=False)))
        packed = len(pack([list(dict.fromkeys(map(tuple, sequences)))]).tokens)  # equal views are computed once
        lines.append(
            f"  the views begin with {shared} tokens in common; {separate} tokens apart, {packed} in a packed row"
        )
    marks = encoded.trained or [True] * len(encoded.answer)
    pairs = groupby(zip(marks, encoded.answer, strict=True), key=itemgetter(0))
    runs = [(trained, _decoded(tokenizer, [token for _, token in run])) for trained, run in pairs]
    for view, prompt in encoded.prompts.items():
        lines.append(f"  {view}: prompt {len(prompt)} + answer {len(encoded.answer)} tokens")
        for trained, text in [(False, _decoded(tokenizer, prompt)), *runs]:
            lines += _marked("    > " if trained else "    | ", text)
    if encoded.rejected:
        lines.append(f"  rejected answer: {len(encoded.rejected)} tokens")
        lines += _marked("    < ", _decoded(tokenizer, encoded.rejected))
    return lines


def _marked(mark: str, text: str) -> list[str]:
    width = terminal_width()
    return [f"{mark}{one}" if len(mark + one) <= width else filled(one, lead=mark) for one in text.split("\n")]


def _decoded(tokenizer: Any, ids: list[int]) -> str:
    text: str = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return text
