"""A run that is shown instead of trained: its recipe, model, steps and some of its micro-batches."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from d2e_sft.config.recipe import Recipe
from d2e_sft.data.chat_template import pad_id
from d2e_sft.data.sample import EventSample
from d2e_sft.model.collation import Row
from d2e_sft.model.device import usable_device
from d2e_sft.model.loading import LoadedModel, load_tokenizer, without_weights
from d2e_sft.model.packing_support import Layout, choose_layout, collator_for
from d2e_sft.model.shapes import SHAPES, config_of
from d2e_sft.model.token_budget import TokenCosts
from d2e_sft.objective.reference import REFERENCE
from d2e_sft.train.checks import Steps, count_steps, loads_whole_steps
from d2e_sft.train.dry_run.cards import Where
from d2e_sft.train.dry_run.tokens import estimating_tokenizer
from d2e_sft.train.prepare import adapter_config, load_on_all, settle_recipe, wrapped_in_adapter
from d2e_sft.train.rows import TokenRows, check_pairs, read_rows
from d2e_sft.train.samples import read_split
from d2e_sft.train.steps.loader import Draws, TokenBudgetSteps, problems
from d2e_sft.util.distributed import process_state
from d2e_sft.util.errors import UserError

DRAWS = 32  # micro-batches whose tokens are averaged


@dataclass(frozen=True)
class Plan:
    """A run that is shown.

    Attributes:
        batches: Micro-batches from the start of the run.
        heaviest: The micro-batch with the most tokens as laid out.
        of_a_step: Average micro-batches per optimiser step and process.
    """

    recipe: Recipe
    model: Any
    layout: Layout
    steps: Steps
    batches: list[dict[str, Any]]
    heaviest: dict[str, Any]
    of_a_step: float
    launcher: str | None

    @property
    def average_tokens(self) -> tuple[float, float]:
        """Tokens of a micro-batch, as laid out and as separate views."""
        laid_out = sum(batch["input_ids"].numel() for batch in self.batches)
        return laid_out / len(self.batches), sum(batch["view_tokens"] for batch in self.batches) / len(self.batches)

    @property
    def cut(self) -> float:
        """Micro-batches for one of `steps`, which counts a share of a step that is loaded at once as one."""
        return self.of_a_step if loads_whole_steps(self.recipe.train) else 1.0

    @property
    def device_name(self) -> str:
        device = usable_device()
        return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


@dataclass(frozen=True)
class Drawn:
    """The micro-batches of the first epoch, shuffled, as row indices.

    Attributes:
        heaviest: The micro-batch with the most tokens.
        of_a_step: Average micro-batches per optimiser step and process.
        notes: What training would warn of.
    """

    micro_batches: list[list[int]]
    heaviest: list[int]
    of_a_step: float
    notes: list[str]


def draw(recipe: Recipe, rows: Sequence[Row], layout: Layout, steps: Steps) -> Drawn:
    """Draw the micro-batches of an epoch as training does."""
    train, costs = recipe.train, TokenCosts.of(rows, layout, recipe.d2e)
    if not loads_whole_steps(train):
        size, order = steps.micro_batch, list(range(len(rows)))
        longest = sorted(order, key=lambda i: costs.of_micro_batch([i]), reverse=True)
        random.Random(0).shuffle(order)
        found = [order[start : start + size] for start in range(0, len(rows), size)]
        return Drawn(found, longest[:size], steps.accumulation, [])
    draws = Draws(train.batch_size, train.seed, train.rows_per_context)
    counted, budget = costs.budgeted(train.micro_batch_tokens, steps.micro_batch)
    epoch = list(TokenBudgetSteps(counted, draws, budget, processes=steps.processes))
    found = [part for step in epoch for part in step if part]
    notes = list(problems(costs, train, layout))
    return Drawn(found, max(found, key=costs.of_micro_batch), len(found) / len(epoch), notes)


def heaviest_line(plan: Plan) -> str:
    """Describe the micro-batch whose memory is shown."""
    batch, samples = plan.heaviest, f"{len(plan.heaviest['labels'])} samples"
    if not loads_whole_steps(plan.recipe.train):
        samples = f"the {len(batch['labels'])} longest samples"
    return (
        f"for the heaviest micro-batch, {samples}: {batch['input_ids'].numel()} tokens laid out, "
        f"{batch['view_tokens']} as separate views"
    )


@dataclass(frozen=True)
class Planned:
    """A plan, and what it was made of."""

    plan: Plan
    loaded: LoadedModel
    training: TokenRows
    rows: Sequence[Row]
    collate: Any
    drawn: Drawn


def planned(recipe: Recipe, where: Where) -> Planned:
    """Read and draw the rows of a run, and load its model; errors as of a training, without those of overlong rows."""
    state = process_state()
    settle_recipe(recipe, elsewhere=where.gpu is not None)
    read = read_split(recipe, "training")
    loaded = _load(recipe, where, state, read.chosen)
    training = read_rows(recipe, "training", loaded, progress=state.is_main_process, refuse=False, read=read)
    adapter = adapter_config(recipe)
    if adapter is not None and not where.reads_weights:
        adapter.init_lora_weights = True  # other initial values are computed from the weights
    model = wrapped_in_adapter(loaded.model, adapter, recipe.model.name)
    layout = choose_layout(model, recipe.d2e, recipe.train.packing, recipe.model.attention)
    collate = collator_for(layout, recipe.d2e, model.config, pad_id(loaded.tokenizer))
    rows = training.dataset
    if recipe.d2e.prefers:
        check_pairs(rows)
    if recipe.d2e.needs_reference:  # of any value
        rows = [{**row, REFERENCE: [0.0, 0.0]} for row in rows]
    steps = count_steps(recipe.train, len(training.samples), where.processes)
    drawn = draw(recipe, rows, layout, steps)
    batches = [collate([rows[i] for i in part]) for part in drawn.micro_batches[:DRAWS]]
    heaviest = collate([rows[i] for i in drawn.heaviest])
    plan = Plan(recipe, model, layout, steps, batches, heaviest, drawn.of_a_step, where.launcher)
    return Planned(plan, loaded, training, rows, collate, drawn)


def _like_remedy(model: str) -> str:
    named = max((shape for shape in SHAPES if shape in model.lower()), key=len, default="qwen3-4b")
    return f"take a published shape, which needs neither network nor model: --like {named}"


def _load(recipe: Recipe, where: Where, state: Any, samples: Sequence[EventSample]) -> LoadedModel:
    if recipe.model.quantization is not None and not where.reads_weights:
        raise UserError(
            f"--without-weights, --like, --gpu: the memory of model.quantization={recipe.model.quantization} cannot "
            "be estimated",
            remedy="leave them out, and --dry-run measures it on a machine that has the model",
        )
    if where.like is None:
        try:
            return load_on_all(recipe, state, weights=where.reads_weights)
        except UserError as error:
            if where.gpu is None:
                raise
            raise UserError(error.message, f"{error.remedy}; or {_like_remedy(recipe.model.name)}") from None
    tokenizer = estimating_tokenizer(recipe, samples) if where.tokenizer is None else None
    if where.tokenizer is not None:
        tokenizer = load_tokenizer(where.tokenizer)[0]
    return LoadedModel(without_weights(config_of(where.like), recipe.model.dtype, None), tokenizer)
