"""`d2e train RECIPE --dry-run`: show a recipe's data, then time and memory of a few micro-batches; write nothing."""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, takewhile
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch

from d2e_sft.config.recipe import Recipe
from d2e_sft.data.prompts import DEFAULT, NEUTRAL, load_prompt_set
from d2e_sft.data.sample import EventSample
from d2e_sft.data.views import EncodedSample
from d2e_sft.model.device import usable_device
from d2e_sft.model.packing import pack
from d2e_sft.train.checks import count_processes, loads_whole_steps, notes_on_steps
from d2e_sft.train.dry_run.cards import CARDS, HERE, Where
from d2e_sft.train.dry_run.fit import LAUNCHERS, OF_LINK, OF_MEMORY, USABLE, Load, fits_on, utilisation_of
from d2e_sft.train.dry_run.memory import PARTS, estimate_memory, on_each_device
from d2e_sft.train.dry_run.plan import Plan, Speed, draw, per_word
from d2e_sft.train.rows import describe_rows, read_rows
from d2e_sft.train.run_folder import check_folder, is_complete, resuming_point
from d2e_sft.util.errors import UserError
from d2e_sft.util.terminal import filled, folded, terminal_width

_PERCENTILES = (50, 90, 95, 99, 100)
_TO_FIT = (
    "to make it fit: train.gradient_checkpointing=true, a smaller train.per_device_train_batch_size or "
    "train.micro_batch_tokens, an adapter (model.lora={}), model.dtype=bfloat16 under it, or more --processes"
)
_BUSY = 1.3  # the clock's time by processor time, above which other programs disturbed a measurement
_CANNOT = (RuntimeError, NotImplementedError, TypeError)  # of `estimate_memory`


def dry_run(
    recipe: Recipe,
    echo: Callable[[str], object],
    where: Where = HERE,
    *,
    resume: bool = False,
    overwrite: bool = False,
) -> None:
    """Show the resolved recipe, samples, lengths, steps, memory and time of a run.

    Overlong rows and an unsuitable run folder are shown; other errors are those of `train_recipe`, without
    `check_recipe`.
    """
    plan = Plan(recipe, where)

    def show(title: str, lines: Sequence[str]) -> None:
        echo("\n".join([f"== {title}", *map(folded, lines), ""]))

    echo(f"== recipe\n{recipe.as_yaml().rstrip()}\n")
    if where.like is not None:
        show("model", _model_lines(plan))
    show("run folder", [_folder_line(recipe, resume=resume, overwrite=overwrite)])
    legend = "| prompt, not trained on; > answer, trained on" + "; < rejected answer" * recipe.d2e.prefers
    show(f"samples ({legend})", _sample_lines(plan))
    show("lengths", _length_lines(plan))
    show("layout", _layout_lines(plan))
    show("steps", _step_lines(plan))
    memory, time = _of_this_machine(plan) if where.gpu is None else _of_cards(plan)
    show(f"memory per device{where}", memory)
    show(f"time{where}", time)


def _model_lines(plan: Plan) -> list[str]:
    where, model = plan.where, plan.loaded.model
    size = sum(parameter.numel() for parameter in model.parameters())
    method = "estimated by word lengths; --tokenizer NAME counts them"
    if where.tokenizer is not None:
        method = f"counted by the tokenizer of {where.tokenizer}"
    tokens = per_word(plan.loaded.tokenizer, plan.training.samples)
    return [f"the shape of {where.like}: {size:,} parameters", f"{tokens:.2f} tokens per word, {method}"]


def _folder_line(recipe: Recipe, *, resume: bool, overwrite: bool) -> str:
    run = Path(recipe.train.output_dir)
    try:
        if resume and not overwrite and is_complete(recipe):
            return f"{run}: is finished; nothing would be trained"
        check_folder(recipe, resume=resume, overwrite=overwrite)
        checkpoint = resuming_point(run) if resume else None
    except UserError as error:
        return f"training would stop: {error}"
    if checkpoint is not None:
        return f"{run}: training would continue from {checkpoint.name}"
    if overwrite and run.exists():
        return f"{run}: training would start over and remove the run in it"
    if resume:
        return f"{run}: training would start from the beginning, since there is no complete checkpoint"
    return f"{run}: training would start{'' if run.exists() else ' in this new folder'}"


def _sample_lines(plan: Plan) -> list[str]:
    """Three samples, and how many rows have another wording than the recipe names."""
    samples, kept, lines = plan.training.samples, plan.training.kept, list[str]()
    recipe_set = load_prompt_set(plan.recipe.data.prompt_set, plan.recipe.data.form)
    neutral = sum(sample.format != "chat" and recipe_set.set_for(sample) is not recipe_set for sample in samples)
    if neutral:
        share = f"{neutral:,} of {len(samples):,} rows, which are not about events"
        lines.append(f"wording: the prompt set {NEUTRAL} instead of {DEFAULT} in {share}")
    by_length = sorted(range(len(kept)), key=lambda i: kept[i].longest)
    for title, i in (("first", 0), ("of middle length", by_length[len(kept) // 2]), ("longest", by_length[-1])):
        lines += [*render_example(title, samples[i], kept[i], plan.loaded.tokenizer), ""]
    return lines[:-1]


def render_example(title: str, sample: EventSample, encoded: EncodedSample, tokenizer: Any) -> Iterator[str]:
    """A sample as lines: each view's tokens decoded, special tokens too, and what of them is trained on."""

    def marked(mark: str, ids: list[int]) -> Iterator[str]:
        text: str = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        for line in text.split("\n"):
            yield f"{mark}{line}" if len(mark + line) <= terminal_width() else filled(line, lead=mark)

    yield f"{title}: {sample.id} ({sample.dataset}, {sample.format})"
    sequences = [[*prompt, *encoded.answer] for prompt in encoded.prompts.values()]
    if len(sequences) > 1:
        shared = sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, zip(*sequences, strict=False)))
        packed = len(pack([list(dict.fromkeys(map(tuple, sequences)))]).tokens)  # equal views are computed once
        apart = sum(map(len, sequences))
        yield f"  the views begin with {shared} tokens in common; {apart} tokens apart, {packed} in a packed row"
    marks = encoded.trained or [True] * len(encoded.answer)
    for view, prompt in encoded.prompts.items():
        yield f"  {view}: prompt {len(prompt)} + answer {len(encoded.answer)} tokens"
        yield from marked("    | ", prompt)
        for trained, run in groupby(zip(marks, encoded.answer, strict=True), key=itemgetter(0)):
            yield from marked("    > " if trained else "    | ", [token for _, token in run])
    if encoded.rejected:
        yield f"  rejected answer: {len(encoded.rejected)} tokens"
        yield from marked("    < ", encoded.rejected)


def _length_lines(plan: Plan) -> list[str]:
    """Lines about the rows, which were read without refusing any, and what training would do about them."""
    recipe, data, encoded = plan.recipe, plan.recipe.data, plan.training
    lines = describe_rows(recipe, "training", plan.training)
    if encoded.dropped and data.overlong != "drop":
        or_cut = " or truncate_context" if data.overlong == "error" else ""
        longest = max(item.longest for item in encoded.whole)
        lines.append(
            f"  training would stop: data.overlong={data.overlong} allows no sample over data.max_length="
            f"{data.max_length}; raise it to {longest}, or set data.overlong=drop{or_cut}"
        )
    lines += length_table(encoded.whole)
    if not data.dev:
        return lines
    try:
        return [*lines, *describe_rows(recipe, "dev", read_rows(recipe, "dev", plan.loaded, progress=False))]
    except UserError as error:
        return [*lines, f"training would stop: {error}"]


def length_table(whole: Sequence[EncodedSample]) -> list[str]:
    """Percentiles of token counts before the length rule, as lines of a table."""
    rows = {
        "longest view + answer": [item.longest for item in whole],
        **{f"prompt, {view}": [len(item.prompts[view]) for item in whole] for view in whole[0].prompts},
        "answer": [len(item.answer) for item in whole],
        "rejected answer": [len(item.rejected) for item in whole if item.rejected],
    }
    lines = [f"{'tokens':<24}" + "".join(f"{'max' if p == 100 else f'p{p}':>7}" for p in _PERCENTILES)]
    for name, lengths in rows.items():
        if lengths:
            ranked = np.percentile(lengths, _PERCENTILES, method="inverted_cdf")  # nearest ranks
            lines.append(f"{name:<24}" + "".join(f"{value:>7}" for value in ranked))
    return lines


def _layout_lines(plan: Plan) -> list[str]:
    laid_out, apart = plan.average_tokens
    unchecked = [] if plan.where.reads_weights else ["whether packed rows are exact is checked only with weights"]
    change = 1 - laid_out / apart
    tokens = f"{laid_out:,.0f} after packing, {abs(change):.0%} {'fewer' if change >= 0 else 'more'}"
    average = f"average tokens of a micro-batch: {tokens} than separate views"
    lines = [plan.layout.describe(), *unchecked, average]
    if plan.recipe.train.rows_per_context == 1 or plan.drawn.notes:
        return lines
    # What rows with the same context save in an epoch, if they are drawn together.
    singly = plan.recipe.model_copy(deep=True)
    singly.train.rows_per_context = 1
    together, alone = (
        sum(plan.batch(part)["input_ids"].numel() for part in drawn.micro_batches)
        / sum(map(len, drawn.micro_batches))  # under a launcher they are those of one process
        for drawn in (plan.drawn, draw(singly, plan.rows, plan.layout, plan.steps))
    )
    saved = f"{together / alone:.2f} × those of rows drawn singly ({alone:.0f})"
    return [*lines, f"tokens per row: {together:.0f}, {saved}"]


def _step_lines(plan: Plan) -> list[str]:
    train, data, steps = plan.recipe.train, plan.recipe.data, plan.steps
    cut = f"{steps.accumulation} micro-batches of {steps.micro_batch}"
    if loads_whole_steps(plan.recipe):
        samples = sum(len(batch["labels"]) for batch in plan.batches) / len(plan.batches)
        tokens = train.micro_batch_tokens
        budget = f"{tokens} tokens" if tokens else f"{steps.micro_batch} samples"
        cut = f"{plan.drawn.of_a_step:.3g} micro-batches of at most {budget} ({samples:.3g} samples on average)"
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
        *(f"warning: {note}" for note in [*notes_on_steps(plan.recipe, steps), *plan.drawn.notes]),
    ]


def _of_this_machine(plan: Plan) -> tuple[list[str], list[str]]:
    """Lines about memory and time: measured if weights are read and fit, otherwise estimated."""
    speed = plan.measure_speed() if plan.where.reads_weights else None
    return _memory_lines(plan, speed), _time_lines(plan, speed)


def _memory_lines(plan: Plan, speed: Speed | None) -> list[str]:
    on_cpu, optim = usable_device().type == "cpu", plan.recipe.train.optim
    if plan.where.launcher is None and speed is not None and speed.peak is not None:
        source = "growth of this process, with its weights" if on_cpu else "of torch's allocator"
        moments = "" if "adamw_torch" in optim else f"; with AdamW's moments, not those of {optim}"
        return [
            f"{'at the peak':<16}{gibibytes(speed.peak):>12}  measured: {source}, on {_device_name()}, 1 process",
            f"over some micro-batches, an optimiser step and the heaviest micro-batch{moments}",
            _heaviest_line(plan),
        ]
    train, accumulation, on_host = plan.recipe.train, plan.accumulation, 0
    try:
        memory = estimate_memory(plan.model, plan.recipe.d2e, plan.layout, plan.heaviest, train, accumulation)
    except _CANNOT as error:
        return [_not_estimated(plan, error)]
    if plan.where.launcher is not None:
        accumulates = accumulation > 1
        memory, on_host = on_each_device(memory, plan.where.launcher, plan.steps.processes, accumulates=accumulates)
    lines = [f"{name:<16}{gibibytes(getattr(memory, part)):>12}" for name, part in PARTS.items()]
    lines.append(f"{'at the peak':<16}{gibibytes(memory.total):>12}  estimated, on {_device_name()}")
    if on_host:
        lines.append(f"{'in host memory':<16}{gibibytes(on_host):>12}  per process")
    lines += [_heaviest_line(plan), "plus Python and its libraries, about 0.5 GiB, and on a GPU its context"]
    if on_cpu:
        lines.append(
            "glibc keeps freed blocks, so a process grows further, most with an adapter; "
            "MALLOC_MMAP_THRESHOLD_=131072 in the environment prevents that and is slower"
        )
    return lines


def _time_lines(plan: Plan, speed: Speed | None) -> list[str]:
    if not plan.where.reads_weights:
        return ["not measured: no weights are read"]
    if speed is None:
        return [f"not measured: a micro-batch does not fit {_device_name()}"]
    threads, on_cpu = torch.get_num_threads(), usable_device().type == "cpu"
    device = f"{_device_name()}, {threads} processor{'s' * (threads > 1)}" if on_cpu else _device_name()
    lines = [
        f"{hours(speed.of_run(plan.steps, plan.cut))} in all, without loading and saving",
        f"a micro-batch {speed.per_micro_batch:.2f} s, the optimiser's step {speed.per_step:.2f} s",
        f"measured on this machine ({device}), 1 process, over {speed.micro_batches} micro-batches",
    ]
    if on_cpu:
        lines.append("this is processor time: the run takes longer while other programs use the processors")
    if speed.slowed > _BUSY:
        lines.append(f"they do now (the clock's time is {speed.slowed:.1f} ×), so the estimate may be too high")
    if plan.steps.processes > 1:
        lines.append(f"the total is this machine's time divided by {plan.steps.processes} processes (linear scaling)")
    return lines


def _of_cards(plan: Plan) -> tuple[list[str], list[str]]:
    """Lines about memory and time on other cards, under each launcher."""
    where, train = plan.where, plan.recipe.train
    card, launchers = CARDS[str(where.gpu)], LAUNCHERS if where.launcher is None else (where.launcher,)
    try:
        load = Load.of(plan)
    except _CANNOT as error:
        return [_not_estimated(plan, error)], ["not estimated"]
    share = where.utilisation or utilisation_of(plan.model)
    fits = fits_on(card, load, launchers, where.processes, share)

    def row(name: str, cells: Sequence[str]) -> str:
        return f"{name:<16}" + "".join(f"{cell:>14}" for cell in cells)

    head, parts = row("", [fit.launcher for fit in fits]), {**PARTS, "at the peak": "total"}
    memory = [head, *(row(n, [gibibytes(getattr(fit.memory, p)) for fit in fits]) for n, p in parts.items())]
    if any(fit.on_host for fit in fits):
        memory.append(row("in host memory", [gibibytes(fit.on_host) for fit in fits]))
    memory.append(row("fits", ["yes" if fit.fits else "no" for fit in fits]))
    memory.append(f"it fits if at most {100 * USABLE:g} % of the card's {card.gib:g} GiB are taken")
    if not any(fit.fits for fit in fits):
        memory.append(_TO_FIT)
    memory.append(_heaviest_line(plan))
    if train.precision == "float32":
        return memory, ["not estimated: the rates of cards are for 16 bits, and this run computes in float32"]
    shown = [fit.times if fit.fits else None for fit in fits]
    times = [
        row(part, ["–" if times_on is None else hours(times_on[part]) for times_on in shown])
        for part in ("computing", "optimiser", "between cards", "in all")
    ]
    return memory, [
        head,
        *times,
        "without loading and saving; some of the time between cards overlaps with computing",
        f"assumed, not measured: {100 * share:.2g} % of {card.tflops:g} TFLOP/s, {100 * OF_MEMORY:g} % of the "
        f"memory's {card.memory:g} GB/s, {100 * OF_LINK:g} % of {card.link:g} GB/s between cards",
    ]


def _heaviest_line(plan: Plan) -> str:
    batch, count = plan.heaviest, len(plan.heaviest["labels"])
    samples = f"{count} samples" if loads_whole_steps(plan.recipe) else f"the {count} longest samples"
    return (
        f"for the heaviest micro-batch, {samples}: {batch['input_ids'].numel():,} tokens after packing, "
        f"{batch['view_tokens']:,} as separate views"
    )


def _not_estimated(plan: Plan, error: Exception) -> str:
    name, reason = type(plan.model).__name__, str(error).splitlines()[0]
    return f"not estimated: {name} cannot be run without data ({reason})"


def _device_name() -> str:
    device = usable_device()
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def gibibytes(size: int) -> str:
    """`1.25 GiB`; small sizes in MiB."""
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 / 10 else f"{size / 2**20:.1f} MiB"


def hours(seconds: float) -> str:
    """`2 h 05 min`, `3 min 20 s` or `12 s`."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
