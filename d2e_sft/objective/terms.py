"""The terms of an objective, summed over answer tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from d2e_sft.config.recipe import D2ESection
from d2e_sft.objective.objectives import Logits, ObjectiveFunction, debias
from d2e_sft.objective.own import function_of
from d2e_sft.util.errors import UserError

Project = Callable[[Tensor], Tensor]  # a head, hidden states (n, H) → logits (n, V)


@dataclass(frozen=True)
class AnswerTokens:
    """The answer tokens of a micro-batch."""

    targets: Tensor  # (N,) token ids
    content: Tensor  # (N,) bool, False for tokens of the response form
    weights: Tensor | None = None  # (N,) weight of each token's loss; None for 1

    def __getitem__(self, part: slice) -> AnswerTokens:
        weights = None if self.weights is None else self.weights[part]
        return AnswerTokens(self.targets[part], self.content[part], weights)


@dataclass(frozen=True)
class Objective:
    """The objective of a recipe, ready to be computed."""

    d2e: D2ESection
    function: ObjectiveFunction
    weights: Mapping[str, float]  # name of each term → its weight in the loss

    @classmethod
    def of(cls, d2e: D2ESection, vocabulary: int) -> Self:
        """Look the function up and call it on two tokens with equal logits, to learn the names of its terms.

        Raises:
            UserError: there is no such function, or it does not return terms of two tokens.
        """
        function = function_of(d2e)
        logits = {view: torch.zeros(2, vocabulary) for view in d2e.views}
        terms = function(logits, torch.zeros(2, dtype=torch.long), torch.ones(2, dtype=torch.bool), d2e)
        weights = {"kl": d2e.kl_weight}
        if d2e.prefers:
            weights["ce"] = d2e.sft_weight
        return cls(d2e, function, {name: weights.get(name, 1.0) for name in terms})

    def sums(self, logits: Logits, tokens: AnswerTokens) -> dict[str, Tensor]:
        """Return sums over tokens: `loss` (with gradient), each term, `correct`, `plain_correct`, `imagined_correct`.

        `logits` are (N, V) for each view.
        The last three count the tokens that are the argmax of the logits as the model is decoded, of the original
        view and of the imagined view.

        Raises:
            UserError: a user's own function returns other terms than before.
        """
        wide = {view: at_least_float32(of_view) for view, of_view in logits.items()}
        terms = self.function(wide, tokens.targets, tokens.content, self.d2e)
        if terms.keys() != self.weights.keys():
            raise UserError(
                f"d2e.objective={self.d2e.objective}: returned the terms {', '.join(terms)}, before that "
                f"{', '.join(self.weights)}; expected the same for every batch"
            )
        if tokens.weights is not None:
            terms = {name: term * tokens.weights.to(term.dtype) for name, term in terms.items()}
        sums = {name: term.sum() for name, term in terms.items()}
        loss = torch.stack([self.weights[name] * term for name, term in sums.items()]).sum()
        detached = {name: term.detach() for name, term in sums.items()}
        return {"loss": loss, **detached, **self._counts(wide, tokens.targets)}

    @torch.no_grad()
    def _counts(self, logits: Logits, targets: Tensor) -> dict[str, Tensor]:
        original, imagined, alpha = logits["original"], logits.get("imagined"), self.d2e.effective_alpha
        plain = hits(original, targets).sum()
        subtracted = imagined is not None and alpha > 0
        return {
            "correct": hits(debias(original, imagined, alpha), targets).sum() if subtracted else plain.clone(),
            "plain_correct": plain,
            "imagined_correct": torch.zeros_like(plain) if imagined is None else hits(imagined, targets).sum(),
        }


def hits(logits: Tensor, targets: Tensor) -> Tensor:
    """(N,) bool, whether the largest logit is the target's."""
    return logits.argmax(dim=-1) == targets


def at_least_float32(tensor: Tensor) -> Tensor:
    """The tensor in float32, or in float64 if it is."""
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()
