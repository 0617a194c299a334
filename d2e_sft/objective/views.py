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
        rest = row if gradients == "all" else row.detach()
        return dict(zip(views, (row[answer_index[0]], *rest[answer_index[1:]].unbind()), strict=True))
    return by_view(views, gradients, inputs, lambda **rows: hidden_states(model, **rows))


def by_view(
    views: Sequence[View], gradients: ViewGradients, inputs: dict[str, Any], run: Callable[..., Tensor]
) -> dict[View, Tensor]:
    """Return (N, H or V) of each view by `run`, which maps the rows of a batch (R, L) to (R, L, H or V).

    The views of an encoder-decoder model differ in the input of the encoder; its decoder sees only the answers.
    """
    index, samples = inputs["answer_index"], inputs["samples"]
    rows = {name: value for name, value in inputs.items() if name not in ("answer_index", "samples")}
    if gradients == "all" or len(views) == 1:
        return dict(zip(views, run(**rows).flatten(0, 1)[index].unbind(), strict=True))
    with torch.no_grad():
        others = run(**{name: value[samples:] for name, value in rows.items()})
        start = samples * others.shape[1]
        others = others.flatten(0, 1)[(index[1:] - start).clamp(min=0)]
    original = run(**{name: value[:samples] for name, value in rows.items()}).flatten(0, 1)
    # A view that equals the original one has its values, without its gradient.
    equal = original.detach()[index[1:].clamp(max=start - 1)]
    others = torch.where((index[1:] >= start)[..., None], others, equal)
    return dict(zip(views, (original[index[0]], *others.unbind()), strict=True))
