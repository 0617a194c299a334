"""The bias model: a model that is not trained, whose imagined view is subtracted in training (`d2e.bias_model`).

Its hidden states are computed once before training and come along with every batch. Its logits are these states
through its own head, which does not change. It is the model before training (`base`) or another one with the same
vocabulary, for example a run that was trained on questions only.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.integrations import is_deepspeed_zero3_enabled

from d2e_sft.config.objectives import View
from d2e_sft.config.recipe import D2ESection
from d2e_sft.model.collation import Row, trained_tokens
from d2e_sft.model.forward import bare_model, head_of
from d2e_sft.model.loading import load_model
from d2e_sft.model.micro_batch import model_inputs
from d2e_sft.model.packing_support import Layout, choose_layout, collator_for
from d2e_sft.objective.terms import Project
from d2e_sft.objective.views import states_of_views
from d2e_sft.util.errors import UserError

NUMBER = "row"  # the column with the index of a row's states
STATES = "{}_states"  # of a frozen view, in a batch


@dataclass(frozen=True)
class FrozenCollator:
    """A collator that adds the hidden states of the frozen views to its batches.

    Args:
        collate: makes the batch of the views that a step runs.
        states: of each frozen view and numbered row, (A, H) for its A trained answer tokens.
    """

    collate: Any
    states: Mapping[View, Sequence[Tensor]]

    def __call__(self, batch: Sequence[Row]) -> dict[str, Any]:
        """Return the batch with states (N, H) of each frozen view.

        Raises:
            ValueError: the rows were not numbered together with the states.
        """
        if not all(NUMBER in row for row in batch):
            raise ValueError("rows without the states of the bias model; expected the rows of the trainer")
        found: dict[str, Any] = self.collate(batch)
        for view, of_rows in self.states.items():
            found[STATES.format(view)] = torch.cat([of_rows[row[NUMBER]] for row in batch])
        return found


def numbered(rows: Any, start: int = 0) -> Any:
    """Return the rows, a dataset or a list, with their numbers in a column."""
    if hasattr(rows, "add_column"):  # a datasets.Dataset
        return rows.add_column(NUMBER, list(range(start, start + len(rows))))
    return [{**row, NUMBER: start + i} for i, row in enumerate(rows)]


def load_bias_model(d2e: D2ESection, model: Any, tokenizer: Any = None) -> tuple[Any, Layout]:
    """Load another model as the bias model, onto the device of `model`, with its batch layout.

    Args:
        model: the model to be trained.
        tokenizer: its tokenizer; None leaves it unchecked.

    Raises:
        UserError: it cannot be loaded, or its tokens or logits are not those of `model`.
    """
    causal = bare_model(model)
    loaded = load_model(str(d2e.bias_model))
    sizes = [one.config.get_text_config().vocab_size for one in (loaded.model, causal)]
    other_tokens = tokenizer is not None and loaded.tokenizer.get_vocab() != tokenizer.get_vocab()
    if other_tokens or sizes[0] != sizes[1]:
        what = f"a vocabulary of {sizes[0]} tokens, not {sizes[1]}" if sizes[0] != sizes[1] else "another tokenizer"
        raise UserError(
            f"d2e.bias_model={d2e.bias_model}: has {what}, so its logits cannot be subtracted",
            remedy="use a model with the tokenizer of model.name, for example another run of it",
        )
    bias = loaded.model.to(causal.device).requires_grad_(False)
    return bias, choose_layout(bias, d2e)


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


def states_of_bias_model(
    model: Any, d2e: D2ESection, layout: Layout, rows: Sequence[Row], *, pad_token_id: int = 0, batch_size: int = 8
) -> dict[View, list[Tensor]]:
    """Return the hidden states (A, H) that predict the A trained answer tokens, per frozen view and row, on the CPU.

    They take 4 bytes · hidden size per answer token, and one forward of the view over the rows.

    Args:
        model: the bias model; for `base`, the model before training, with its adapter if it has one.

    Raises:
        UserError: the weights of the model are sharded (ZeRO-3).
    """
    if is_deepspeed_zero3_enabled():
        raise UserError(
            f"d2e.bias_model={d2e.bias_model}: needs whole weights before training, and ZeRO-3 shards them",
            remedy="use --launch ddp or zero2",
        )
    causal, found = bare_model(model), dict[View, list[Tensor]]()
    training = model.training
    model.eval()
    with torch.no_grad():
        for view in d2e.frozen_views:
            collate = collator_for(layout, d2e, causal.config, pad_token_id, views=[view])
            found[view] = []
            for start in range(0, len(rows), batch_size):
                batch = [rows[i] for i in range(start, min(start + batch_size, len(rows)))]
                inputs = model_inputs(collate(batch), causal.device)
                inputs = {
                    name: value for name, value in inputs.items() if name not in ("targets", "content", "weights")
                }
                states = states_of_views(causal, [view], "all", inputs)[view].cpu()
                found[view] += states.split([trained_tokens(row) for row in batch])
    model.train(training)
    return found


def blank_states(model: Any, d2e: D2ESection, rows: Sequence[Row]) -> dict[View, list[Tensor]]:
    """Return states of the right shapes that cost nothing, to measure a step with."""
    width = model.get_output_embeddings().weight.shape[-1]
    return {
        view: [torch.zeros(1, width).expand(trained_tokens(row), width) for row in rows] for view in d2e.frozen_views
    }
