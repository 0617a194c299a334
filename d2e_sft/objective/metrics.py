"""Sums of the objective over several micro-batches, and the values logged from them."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from d2e_sft.config.recipe import D2ESection
from d2e_sft.objective.preference import PAIR_MEANS

_COUNTS = ("correct", "plain_correct", "imagined_correct")


class ObjectiveMetrics:
    """Sums the objective over steps or held-out rows; only `compute` waits for the device."""

    def __init__(self, d2e: D2ESection, weights: Mapping[str, float], device: torch.device) -> None:
        self.d2e = d2e
        self.weights = {**weights, **({"preference": 1.0} if d2e.prefers else {})}
        pairs = ("preference", "pair_share", "pairs", *PAIR_MEANS) if d2e.prefers else ()
        counts = (*_COUNTS, "answers", "tokens", "rows", "kl_rows")
        # Terms of the loss, and the pairs' own loss, which has another factor.
        self._names = [*(f"loss/{term}" for term in self.weights), "share", *counts, *pairs]
        precise = torch.float32 if device.type == "mps" else torch.float64
        self._sums = torch.zeros(len(self._names), dtype=precise, device=device)

    def update(
        self, sums: dict[str, Tensor], targets: Tensor, counts: Sequence[int], scale: Tensor | float = 1.0
    ) -> None:
        """Add a micro-batch: the forward's sums and their factor in the loss; `counts` are those of `counts_of`.

        The loss of pairs has the factor `pair_scale` of the sums, or 1 without.
        """
        answers, pair_scale = torch.tensor(len(targets), device=targets.device), sums.get("pair_scale", 1.0)
        tokens, rows, kl_rows = torch.tensor(counts, device=targets.device)
        added = {f"loss/{term}": sums[term] * scale for term in self.weights}
        added |= {"share": answers * scale, "answers": answers, "tokens": tokens, "rows": rows, "kl_rows": kl_rows}
        if self.d2e.prefers:
            added |= {"preference": sums["preference"] * pair_scale, "pair_share": sums["pairs"] * pair_scale}
        self._sums += torch.stack([added[name] if name in added else sums[name] for name in self._names]).detach()

    def compute(self, accelerator: Any) -> tuple[dict[str, float], float]:
        """Return the values to log and the number of view tokens, over all processes, and reset the sums.

        Terms are in nats per answer token; accuracies are shares of answer tokens.
        """
        sums, self._sums = self._sums, torch.zeros_like(self._sums)
        if accelerator.num_processes > 1:
            sums = accelerator.gather(sums[None]).sum(dim=0)
        total = dict(zip(self._names, sums.tolist(), strict=True))
        # In training the shares of one optimiser step add up to `num_processes`, so `share` counts steps in that unit,
        # and the weighted sum of the terms equals the mean of step losses that the Trainer logs.
        values = {term: total[f"loss/{term}"] / total["share"] for term in self.weights}
        values["mean_token_accuracy"] = total["correct"] / total["answers"]
        if "imagined" in self.d2e.views:
            values["plain_accuracy"] = total["plain_correct"] / total["answers"]
            values["bias_share"] = total["imagined_correct"] / total["answers"]
        if "refined" in self.d2e.views:
            values["kl_rows"] = total["kl_rows"] / total["rows"]
        if self.d2e.prefers:
            values["preference"] = total["preference"] / (total["pair_share"] or 1)  # steps without pairs do not count
            values |= {name: total[name] / (total["pairs"] or 1) for name in PAIR_MEANS}
        return values, total["tokens"]

    def loss_of(self, values: Mapping[str, float]) -> float:
        """Return the loss per answer token from the values of `compute`."""
        return sum(weight * values[name] for name, weight in self.weights.items())
