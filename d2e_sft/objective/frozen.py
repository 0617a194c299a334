"""Views that are frozen: their hidden states, taken once before training and brought along with every batch.

The logits of such a view are those of the model as it was, through the head as it was (`attach_objective` keeps it).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.integrations import is_deepspeed_zero3_enabled

from d2e_sft.config.objectives import View
from d2e_sft.config.recipe import D2ESection
from d2e_sft.model.collation import Row, trained_tokens
from d2e_sft.model.forward import bare_model
from d2e_sft.model.micro_batch import model_inputs
from d2e_sft.model.packing_support import Layout, collator_for
from d2e_sft.objective.attach import STATES, states_of_views
from d2e_sft.util.errors import UserError

NUMBER = "row"  # the column that says which row of the states belongs to a sample


@dataclass(frozen=True)
class FrozenCollator:
    """A collator whose batches have the hidden states of the frozen views, too.

    Args:
        collate: makes a batch of what a step runs.
        states: of each frozen view and numbered row, (A, H) for its A answer tokens.
    """

    collate: Any
    states: Mapping[View, Sequence[Tensor]]

    def __call__(self, batch: Sequence[Row]) -> dict[str, Any]:
        """The batch, with (N, H) states of each frozen view.

        Raises:
            ValueError: rows that were not numbered with the states.
        """
        if not all(NUMBER in row for row in batch):
            raise ValueError("rows without the states of the model before training; expected those of the trainer")
        found: dict[str, Any] = self.collate(batch)
        for view, of_rows in self.states.items():
            found[STATES.format(view)] = torch.cat([of_rows[row[NUMBER]] for row in batch])
        return found


def numbered(rows: Any, start: int = 0) -> Any:
    """The rows, a dataset or a list, with their numbers in a column."""
    if hasattr(rows, "add_column"):  # a datasets.Dataset, without which training on a list works too
        return rows.add_column(NUMBER, list(range(start, start + len(rows))))
    return [{**row, NUMBER: start + i} for i, row in enumerate(rows)]


def states_before_training(
    model: Any, d2e: D2ESection, layout: Layout, rows: Sequence[Row], *, pad_token_id: int = 0, batch_size: int = 8
) -> dict[View, list[Tensor]]:
    """Of each frozen view and row the hidden states (A, H) that predict the answer's A tokens, on the CPU.

    They take 4 bytes · hidden size for each answer token, and one forward of the view over the rows.

    Args:
        model: as it is before training, with its adapter where it has one.

    Raises:
        UserError: the model's weights are in pieces (ZeRO-3).
    """
    if is_deepspeed_zero3_enabled():
        raise UserError(
            f"d2e.objective={d2e.objective}: keeps hidden states of the model before training, and under ZeRO-3 it is "
            "in pieces then",
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
    """States of the right shapes that cost nothing, to measure a step with."""
    width = model.get_output_embeddings().weight.shape[-1]
    return {
        view: [torch.zeros(1, width).expand(trained_tokens(row), width) for row in rows] for view in d2e.frozen_views
    }
