"""Sums of an objective's terms over answer tokens: from whole logits, or from hidden states chunk by chunk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from d2e_sft.config.objectives import View
from d2e_sft.config.recipe import D2ESection
from d2e_sft.objective.chunks import ChunkedObjective, Project, SumsAndGradients, at_least_float32, sum_in_chunks
from d2e_sft.objective.loss import count_hits, debias, weighted_sum
from d2e_sft.objective.objectives import Logits, ObjectiveFunction
from d2e_sft.objective.own import function_of
from d2e_sft.util.errors import UserError

IN_CLOSED_FORM = ("sft", "d2e")  # `loss.chunked_d2e_loss` has their gradients


@dataclass(frozen=True)
class Terms:
    """An objective's function, ready to be called.

    Attributes:
        weights: the names of its terms, and how often each counts in the loss.
    """

    d2e: D2ESection
    function: ObjectiveFunction
    weights: Mapping[str, float]

    @classmethod
    def of(cls, d2e: D2ESection, vocabulary: int) -> Self:
        """The recipe's function, which is asked for its terms' names with two tokens of equal logits.

        Raises:
            UserError: there is no such function, or what it returns is not terms of two tokens.
        """
        function = function_of(d2e)
        logits = {view: torch.zeros(2, vocabulary) for view in d2e.views}
        terms = function(logits, torch.zeros(2, dtype=torch.long), torch.ones(2, dtype=torch.bool), d2e)
        weights = {"kl": d2e.kl_weight, "imagined_ce": d2e.imagined_weight}
        return cls(d2e, function, {name: weights.get(name, 1.0) for name in terms})

    def sums(
        self, logits: Logits, targets: Tensor, content: Tensor, weights: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss and each term without gradient, over the tokens, each counted as often as its weight (N,) says.

        Raises:
            UserError: a user's own function, which returned other terms before.
        """
        terms = self.function(logits, targets, content, self.d2e)
        if terms.keys() != self.weights.keys():
            raise UserError(
                f"d2e.objective={self.d2e.objective}: returned the terms {', '.join(terms)}, before that "
                f"{', '.join(self.weights)}; expected the same for every batch"
            )
        sums = {name: weighted_sum(term, weights) for name, term in terms.items()}
        loss = torch.stack([self.weights[name] * term for name, term in sums.items()]).sum()
        return loss, {name: term.detach() for name, term in sums.items()}


def sum_logits(
    terms: Terms, logits: Logits, targets: Tensor, content: Tensor, weights: Tensor | None = None
) -> dict[str, Tensor]:
    """`loss`, which carries gradient, each term and the counts `correct`, `plain_correct` and `imagined_correct`.

    Args:
        logits: (N, V) of each view.
        targets: (N,) the answer tokens.
        content: (N,) bool, see `objectives`.
        weights: (N,) how often each token's loss counts; None for once.
    """
    wide = {view: at_least_float32(of_view) for view, of_view in logits.items()}
    loss, sums = terms.sums(wide, targets, content, weights)
    return {"loss": loss, **sums, **_counts(terms.d2e, wide, targets)}


def sum_states(
    terms: Terms,
    states: Mapping[View, Tensor],
    targets: Tensor,
    content: Tensor,
    project: Project,
    weights: Tensor | None = None,
    *,
    heads: Mapping[str, Project] | None = None,
    parameters: Sequence[Tensor] = (),
    chunk_rows: int | None = None,
    chunks: int | None = None,
) -> dict[str, Tensor]:
    """As `sum_logits`, of the views' hidden states (N, H); the other arguments as for `sum_in_chunks`.

    Args:
        heads: of frozen views.
    """
    detached = () if terms.d2e.view_gradients == "all" else tuple(view for view in states if view != "original")
    named = {str(view): state for view, state in states.items()}
    objective = _ChunkedTerms(
        project, named, targets, terms.weights, detached, content, terms, weights, heads=heads or {}
    )
    return sum_in_chunks(objective, parameters, chunk_rows, chunks)


@dataclass(frozen=True)
class _ChunkedTerms(ChunkedObjective):
    """Any objective: autograd from its terms to the logits."""

    content: Tensor
    terms: Terms
    token_weights: Tensor | None

    def of_chunk(self, part: slice, logits: dict[str, Tensor]) -> SumsAndGradients:
        """As `ChunkedObjective` has it."""
        wide: dict[Any, Tensor] = {
            name: at_least_float32(z.detach()).requires_grad_(z.requires_grad) for name, z in logits.items()
        }
        targets = self.targets[part]
        with torch.enable_grad():
            counted = None if self.token_weights is None else self.token_weights[part]
            loss, sums = self.terms.sums(wide, targets, self.content[part], counted)
        trained = [name for name, z in wide.items() if z.requires_grad] if loss.requires_grad else []
        found = torch.autograd.grad(loss, [wide[name] for name in trained], allow_unused=True) if trained else ()
        pairs = [(logits[name], one) for name, one in zip(trained, found, strict=True) if one is not None]
        return {**sums, **_counts(self.terms.d2e, wide, targets)}, pairs


def _counts(d2e: D2ESection, logits: Logits, targets: Tensor) -> dict[str, Tensor]:
    """Tokens that are right as the model is decoded, of the original view alone and of the imagined one alone."""
    with torch.no_grad():
        original, imagined, alpha = logits["original"], logits.get("imagined"), d2e.decoding_alpha
        plain = count_hits(original, targets)
        subtracted = imagined is not None and alpha > 0
        return {
            "correct": count_hits(debias(original, imagined, alpha), targets) if subtracted else plain.clone(),
            "plain_correct": plain,
            "imagined_correct": torch.zeros_like(plain) if imagined is None else count_hits(imagined, targets),
        }
