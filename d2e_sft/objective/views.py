"""What a model computes for each view at the positions that predict the answer, from the batch of a collator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from d2e_sft.config.objectives import View, ViewGradients
from d2e_sft.model.forward import hidden_states, packed_states


def states_of_views(
    model: Any, views: Sequence[View], gradients: ViewGradients, inputs: dict[str, Any]
) -> dict[View, Tensor]:
    """Return the hidden states (N, H) of each view of a batch, by a bare causal language model."""
    if "forest" in inputs:
        forest, answer_index = inputs["forest"], inputs["answer_index"]
        row = packed_states(model, forest, inputs["input_ids"])
        # The first answer token of another view may be predicted by a token that the original shares.
        rest = row if forest.lead == forest.length else row.detach()
        return dict(zip(views, (row[answer_index[0]], *rest[answer_index[1:]].unbind()), strict=True))
    return by_view(views, gradients, inputs, lambda **rows: hidden_states(model, **rows))


def by_view(
    views: Sequence[View], gradients: ViewGradients, inputs: dict[str, Any], run: Callable[..., Tensor]
) -> dict[View, Tensor]:
    """Return (N, H or V) of each view by `run`, which maps one row per view and sample to (rows, L, H or V).

    The views of an encoder-decoder model differ in the input of the encoder; its decoder sees only the answers.
    """
    own = {name: value for name, value in inputs.items() if name not in ("answer_index", "decoder_input_ids")}
    batch = len(inputs["input_ids"]) // len(views)

    def of_views(first: int, last: int) -> tuple[Tensor, ...]:
        rows = {name: value[first * batch : last * batch] for name, value in own.items()}
        if "decoder_input_ids" in inputs:
            rows["decoder_input_ids"] = inputs["decoder_input_ids"].repeat(last - first, 1)
        flat = run(**rows).flatten(0, 1)
        start = first * (len(flat) // (last - first))
        return flat[inputs["answer_index"][first:last] - start].unbind()

    if gradients == "all" or len(views) == 1:
        parts = of_views(0, len(views))
    else:
        with torch.no_grad():
            others = of_views(1, len(views))
        parts = (*of_views(0, 1), *others)
    return dict(zip(views, parts, strict=True))
