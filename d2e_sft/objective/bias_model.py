"""The bias model: a model that is not trained, whose imagined view is the habit in training (`d2e.bias_model`).

Its hidden states are computed once before training; its own head, which does not change, turns them into logits.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers.integrations import is_deepspeed_zero3_enabled

from d2e_sft.config.objectives import BASE, View
from d2e_sft.config.recipe import D2ESection, Recipe, recipe_of
from d2e_sft.model.collation import Row, trained_tokens
from d2e_sft.model.forward import bare_model, evaluating, head_of
from d2e_sft.model.loading import load_config, load_model, load_tokenizer
from d2e_sft.model.micro_batch import OF_ANSWERS, model_inputs
from d2e_sft.model.packing_support import Layout, choose_layout, collator_for
from d2e_sft.objective.terms import Project
from d2e_sft.objective.views import states_of_views
from d2e_sft.util.errors import UserError
from d2e_sft.util.progress import Progress
from d2e_sft.util.terminal import warn

NUMBER = "row"  # the column with the index of a row's states
STATES = "{}_states"  # the name of a frozen view's states in a batch


@dataclass(frozen=True)
class FrozenCollator:
    """A collator that adds the hidden states of the frozen views to its batches.

    Args:
        states: of each frozen view and numbered row, (A, H) for its A trained answer tokens.
    """

    collate: Any
    states: Mapping[View, Sequence[Tensor]]

    def __call__(self, batch: Sequence[Row]) -> dict[str, Any]:
        """Return the batch with states (N, H) of each frozen view; raise ValueError for rows without numbers."""
        if not all(NUMBER in row for row in batch):
            raise ValueError("rows without the states of the bias model; expected the rows of the trainer")
        found: dict[str, Any] = self.collate(batch)
        for view, of_rows in self.states.items():
            found[STATES.format(view)] = torch.cat([of_rows[row[NUMBER]] for row in batch])
        return found


def with_column(rows: Any, name: str, values: Sequence[Any]) -> Any:
    """Return the rows, a dataset or a list, with one more column."""
    if hasattr(rows, "add_column"):  # a datasets.Dataset
        return rows.add_column(name, list(values))
    return [{**row, name: value} for row, value in zip(rows, values, strict=True)]


def numbered(rows: Any, start: int = 0) -> Any:
    """Return the rows with their numbers in a column."""
    return with_column(rows, NUMBER, range(start, start + len(rows)))


@dataclass(frozen=True)
class BiasModel:
    """The bias model of a training."""

    model: Any  # a bare model; for `base`, the trained model itself, still untrained
    layout: Layout  # of its batches
    head: Project  # hidden states → logits; does not change in training

    @classmethod
    def of(cls, d2e: D2ESection, model: Any, layout: Layout, tokenizer: Any = None) -> Self:
        """Return the model before training, or load another one onto its device.

        Args:
            model, layout: the model to be trained, possibly with an adapter, and the layout of its batches.
            tokenizer: its tokenizer; None leaves that of the other model unchecked.

        Raises:
            UserError: it cannot be loaded, its tokens or logits are not those of `model`, its head is unknown, or the
                launcher shards the weights (ZeRO-3).
        """
        key, causal = f"d2e.bias_model={d2e.bias_model}", bare_model(model)
        refuse_sharded(key, "use --launch ddp or zero2")
        if d2e.bias_model != BASE:
            causal = load_beside(key, str(d2e.bias_model), causal, tokenizer)
            layout = choose_layout(causal, d2e)
        return cls(causal, layout, frozen_head(causal, d2e, own_logits=layout.takes_own_logits))

    def states(
        self, d2e: D2ESection, rows: Sequence[Row], *, pad_token_id: int = 0, batch_size: int = 8
    ) -> dict[View, list[Tensor]]:
        """Return the hidden states (A, H) that predict the A trained answer tokens, per frozen view and row, on CPU.

        They take 4 bytes · hidden size per answer token, and one forward of the view over the rows.
        """
        found = dict[View, list[Tensor]]()
        with evaluating(self.model), torch.no_grad():
            for view in d2e.frozen_views:
                collate = collator_for(self.layout, d2e, self.model.config, pad_token_id, views=[view])
                found[view] = []
                for start in Progress(range(0, len(rows), batch_size), desc=f"bias model, {view}", unit="batch"):
                    batch = [rows[i] for i in range(start, min(start + batch_size, len(rows)))]
                    inputs = model_inputs(collate(batch), self.model.device)
                    for name in ("targets", *OF_ANSWERS):
                        inputs.pop(name, None)
                    states = states_of_views(self.model, [view], "all", inputs)[view].cpu()
                    found[view] += states.split([trained_tokens(row) for row in batch])
        return found


def frozen_head(model: Any, d2e: D2ESection, *, own_logits: bool) -> Project:
    """Return the head of a bare model as it is now; a copy if it is trained.

    Raises:
        UserError: its logits come from its own forward, so hidden states are not enough.
    """
    if own_logits:
        raise UserError(
            f"d2e.bias_model={d2e.bias_model}: needs hidden states, but the logits of {type(model).__name__} come "
            "from its own forward; expected a causal model with a plain head",
            remedy="leave d2e.bias_model out; d2e.view_gradients=original also keeps the imagined view from training",
        )
    head = model.get_output_embeddings()
    if any(parameter.requires_grad for parameter in head.parameters()):
        # Copied parameter by parameter: deepcopy fails on fake tensors (of the memory estimate), which hold no data.
        weights = {id(one): nn.Parameter(one.detach().clone(), requires_grad=False) for one in head.parameters()}
        head = copy.deepcopy(head, weights)
    project, _ = head_of(model, head)
    return project


def refuse_sharded(key: str, remedy: str) -> None:
    """Raise UserError under ZeRO-3, whose processes hold no whole model before training."""
    if is_deepspeed_zero3_enabled():
        raise UserError(f"{key}: needs whole weights before training, and ZeRO-3 shards them", remedy)


def check_other_model(recipe: Recipe) -> None:
    """Check the bias model or the reference of a recipe before weights are read.

    Raises:
        UserError: there is no such model, its run has not finished, or its tokens are not those of `model.name`.
    """
    key, name = recipe.d2e.other_model_key, str(recipe.d2e.other_model)
    try:
        found = (load_config(name), load_tokenizer(name)[0])
    except UserError as error:
        raise UserError(f"{key}: {error.message}", error.remedy) from None
    _refuse_other_tokens(key, found, (load_config(recipe.model.name), load_tokenizer(recipe.model.name)[0]))


def warn_if_trained_with_contexts(d2e: D2ESection) -> None:
    """Warn if the bias model is a run whose training never left the contexts out."""
    run = None if d2e.bias_model in (None, BASE) else recipe_of(str(d2e.bias_model))
    if run is not None and not run.data.without_context and not run.d2e.trains_imagined:
        warn(
            f"d2e.bias_model={d2e.bias_model}: was trained with the contexts, so it may not know the habit without "
            "them; a run that sees questions only knows it (--method question-only)"
        )


def load_beside(key: str, name: str, trained: Any, tokenizer: Any) -> Any:
    """Load a model that is not trained onto the device of the trained one; UserError if its tokens are others."""
    loaded = load_model(name)
    _refuse_other_tokens(key, (loaded.model.config, loaded.tokenizer), (trained.config, tokenizer))
    return loaded.model.to(trained.device).requires_grad_(False)


def _refuse_other_tokens(key: str, other: tuple[Any, Any], trained: tuple[Any, Any]) -> None:
    """Compare configurations and tokenizers; a tokenizer of None is not compared."""
    size, expected = (config.get_text_config().vocab_size for config, _ in (other, trained))
    if size != expected or (trained[1] is not None and other[1].get_vocab() != trained[1].get_vocab()):
        what = "another tokenizer" if size == expected else f"a vocabulary of {size} tokens, not {expected}"
        raise UserError(
            f"{key}: has {what}, so its log-probabilities are of other tokens",
            remedy="use a model with the tokenizer of model.name, for example another run of it",
        )


def blank_states(model: Any, d2e: D2ESection, rows: Sequence[Row]) -> dict[View, list[Tensor]]:
    """Return states of the right shapes that cost nothing, to measure a step with."""
    width = model.get_output_embeddings().weight.shape[-1]
    return {
        view: [torch.zeros(1, width).expand(trained_tokens(row), width) for row in rows] for view in d2e.frozen_views
    }
