"""Sums of the objective over several micro-batches, and the values logged from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from d2e_sft.config.recipe import D2ESection
from d2e_sft.objective.preference import PAIR_MEANS


class ObjectiveMetrics:
    """Sums the objective over the steps between two logs, or over held-out rows.

    Args:
        weights: name of each term → its weight in the loss; see `Objective`.
        device: holds the sums; only `compute` waits for it.
    """

    def __init__(self, d2e: D2ESection, weights: Mapping[str, float], device: torch.device) -> None:
        self.d2e = d2e
        self.weights = {**weights, **({"preference": 1.0} if d2e.prefers else {})}
        precise = torch.float32 if device.type == "mps" else torch.float64
        self._pair_sums = 3 + len(PAIR_MEANS) if d2e.prefers else 0
        self._sums = torch.zeros(len(self.weights) + 8 + self._pair_sums, dtype=precise, device=device)

    def update(
        self,
        sums: dict[str, Tensor],
        targets: Tensor,
        counts: Sequence[int],
        scale: Tensor | float = 1.0,
    ) -> None:
        """Add a micro-batch: the forward's sums and their factor in the loss; `counts` are those of `counts_of`.

        The loss of pairs has the factor `pair_scale` of the sums, or 1 without.
        """
        answers = torch.tensor(len(targets), device=targets.device)
        of_loss = [*(sums[term] * scale for term in self.weights), answers * scale]
        correct = [sums[name] for name in ("correct", "plain_correct", "imagined_correct")]
        counted = torch.tensor(counts, device=targets.device)
        of_pairs = list[Tensor]()
        if self._pair_sums:
            pair_scale = sums.get("pair_scale", 1.0)
            of_pairs = [sums["preference"] * pair_scale, sums["pairs"] * pair_scale]
            of_pairs += [sums[name] for name in ("pairs", *PAIR_MEANS)]
        self._sums += torch.stack([*of_loss, *correct, answers, *counted, *of_pairs]).detach()

    def compute(self, accelerator: Any) -> tuple[dict[str, float], float]:
        """Return the values to log and the number of view tokens, over all processes, and reset the sums.

        Terms are in nats per answer token; accuracies are shares of answer tokens.
        """
        sums, self._sums = self._sums, torch.zeros_like(self._sums)
        if accelerator.num_processes > 1:
            sums = accelerator.gather(sums[None]).sum(dim=0)
        sums, of_pairs = sums.tensor_split([len(sums) - self._pair_sums])
        # In training the shares of one optimiser step add up to `num_processes`, so `share` counts steps in that unit,
        # and the weighted sum of the terms equals the mean of step losses that the Trainer logs.
        *terms, share, correct, plain, imagined, answers, tokens, rows, kl_rows = sums.tolist()
        values = {name: term / share for name, term in zip(self.weights, terms, strict=True)}
        values["debiased_accuracy"] = correct / answers
        values["plain_accuracy"] = plain / answers
        if "imagined" in self.d2e.views:
            values["bias_share"] = imagined / answers
        if "refined" in self.d2e.views:
            values["kl_rows"] = kl_rows / rows
        if self._pair_sums:
            preference, pair_share, pairs, *means = of_pairs.tolist()
            values["preference"] = preference / (pair_share or 1)  # steps without pairs do not count
            values |= {name: mean / (pairs or 1) for name, mean in zip(PAIR_MEANS, means, strict=True)}
        return values, tokens

    def loss_of(self, values: Mapping[str, float]) -> float:
        """Return the loss per answer token from the values of `compute`."""
        return sum(weight * values[name] for name, weight in self.weights.items())
