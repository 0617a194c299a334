"""Sums of the objective over several micro-batches, and the values that are logged of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from d2e_sft.config.recipe import D2ESection


class ObjectiveMetrics:
    """Accumulates the objective's parts over the steps between two logs, or a pass over held-out rows.

    Args:
        d2e: the objective.
        weights: the names of its terms, and how often each counts in the loss; see `Objective`.
        device: where the sums are kept; reading them waits for it, so that is done once, by `compute`.
    """

    def __init__(self, d2e: D2ESection, weights: Mapping[str, float], device: torch.device) -> None:
        self.d2e = d2e
        self.weights = weights
        precise = torch.float32 if device.type == "mps" else torch.float64
        self._weighted = False
        self._sums = torch.zeros(len(weights) + 8, dtype=precise, device=device)

    def update(
        self,
        sums: dict[str, Tensor],
        targets: Tensor,
        view_tokens: int,
        scale: Tensor | float = 1.0,
        token_weights: Tensor | None = None,
    ) -> None:
        """Add a micro-batch.

        Args:
            sums: as the model's forward returns them, over its answer tokens; without `plain_correct` and
                `imagined_correct` the micro-batch does not count for the accuracies of single views.
            targets: (N,) its answer tokens.
            view_tokens: tokens of all its views.
            token_weights: (N,) of the rows, where they have any; already in the sums.
            scale: what its sums are multiplied by in the loss; 1 gives every answer token the same weight.
        """
        self._weighted |= token_weights is not None
        answers = torch.tensor(len(targets), device=targets.device)
        mass = answers if token_weights is None else token_weights.sum()
        tokens = torch.tensor(view_tokens, device=targets.device)
        of_loss = [*(sums[term] * scale for term in self.weights), answers * scale]
        none = torch.zeros_like(answers)
        of_views = [sums.get(name, none) for name in ("plain_correct", "imagined_correct")]
        counted = answers if "plain_correct" in sums else none
        self._sums += torch.stack([*of_loss, sums["correct"], answers, *of_views, counted, tokens, mass]).detach()

    def compute(self, accelerator: Any) -> tuple[dict[str, float], float]:
        """The values to log, and the number of tokens of all views, over all processes; the sums begin anew.

        Terms are in nats an answer token, weighted as the loss is; the accuracies are shares of answer tokens.
        """
        sums, self._sums = self._sums, torch.zeros_like(self._sums)
        if accelerator.num_processes > 1:
            sums = accelerator.gather(sums[None]).sum(dim=0)
        # In training the shares of one optimiser step add up to `num_processes`, so `share` is the number of steps in
        # that unit, and the weighted sum of the terms equals the mean of step losses that the Trainer logs.
        *terms, share, correct, answers, plain, imagined, counted, tokens, mass = sums.tolist()
        values = {name: term / share for name, term in zip(self.weights, terms, strict=True)}
        values["debiased_accuracy"] = correct / answers
        if self._weighted:
            values["sample_weight"] = mass / answers
        if counted:
            values["plain_accuracy"] = plain / counted
            if "imagined" in self.d2e.views:
                values["bias_share"] = imagined / counted
        return values, tokens

    def loss_of(self, values: Mapping[str, float]) -> float:
        """The loss of an answer token, of what `compute` returns."""
        return sum(weight * values[name] for name, weight in self.weights.items())
