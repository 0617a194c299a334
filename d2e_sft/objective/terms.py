"""Sums of an objective's terms over answer tokens: from whole logits, or from hidden states chunk by chunk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from d2e_sft.config.objectives import View
from d2e_sft.config.recipe import D2ESection
from d2e_sft.objective.chunks import ChunkedObjective, Project, SumsAndGradients, at_least_float32, sum_in_chunks
from d2e_sft.objective.loss import count_hits, debias
from d2e_sft.objective.objectives import Logits, ObjectiveFunction
from d2e_sft.objective.own import function_of

IN_CLOSED_FORM = ("sft", "d2e")  # `loss.chunked_d2e_loss` has their gradients
# A vocabulary for the functions of this package; a user's own may look for tokens of its model's.
_SMALL = 3


def weights_of(d2e: D2ESection, vocabulary: int = _SMALL) -> dict[str, float]:
    """The names of the objective's terms, and how often each counts in the loss.

    The function is asked, with two tokens of equal logits.

    Raises:
        UserError: there is no such function, or what it returns is not terms of two tokens.
    """
    if d2e.objective in IN_CLOSED_FORM:
        return {"ce": 1.0, "kl": d2e.kl_weight}
    logits = {view: torch.zeros(2, vocabulary) for view in d2e.views}
    targets = torch.zeros(2, dtype=torch.long)
    terms = function_of(d2e)(logits, targets, torch.ones(2, dtype=torch.bool), d2e)
    return {name: d2e.kl_weight if name == "kl" else 1.0 for name in terms}


def sum_logits(d2e: D2ESection, logits: Logits, targets: Tensor, content: Tensor) -> dict[str, Tensor]:
    """`loss`, which carries gradient, each term and the counts `correct`, `plain_correct` and `imagined_correct`.

    Args:
        logits: (N, V) of each view.
        targets: (N,) the answer tokens.
        content: (N,) bool, see `objectives`.
    """
    wide = {view: at_least_float32(of_view) for view, of_view in logits.items()}
    terms = {name: term.sum() for name, term in function_of(d2e)(wide, targets, content, d2e).items()}
    weighted = [d2e.kl_weight * term if name == "kl" else term for name, term in terms.items()]
    detached = {name: term.detach() for name, term in terms.items()}
    return {"loss": torch.stack(weighted).sum(), **detached, **_counts(d2e, wide, targets)}


def sum_states(
    d2e: D2ESection,
    states: Mapping[View, Tensor],
    targets: Tensor,
    content: Tensor,
    project: Project,
    *,
    parameters: Sequence[Tensor] = (),
    chunk_rows: int | None = None,
    chunks: int | None = None,
) -> dict[str, Tensor]:
    """As `sum_logits`, of the views' hidden states (N, H); the other arguments as for `sum_in_chunks`."""
    detached = () if d2e.view_gradients == "all" else tuple(view for view in states if view != "original")
    function = function_of(d2e)
    named = {str(view): state for view, state in states.items()}
    objective = _ChunkedTerms(project, named, targets, weights_of(d2e), detached, content, function, d2e)
    return sum_in_chunks(objective, parameters, chunk_rows, chunks)


@dataclass(frozen=True)
class _ChunkedTerms(ChunkedObjective):
    """Any objective: autograd from its terms to the logits."""

    content: Tensor
    function: ObjectiveFunction
    d2e: D2ESection

    def of_chunk(self, part: slice, logits: dict[str, Tensor]) -> SumsAndGradients:
        """As `ChunkedObjective` has it."""
        wide = {name: at_least_float32(z.detach()).requires_grad_(z.requires_grad) for name, z in logits.items()}
        targets = self.targets[part]
        with torch.enable_grad():
            terms = self.function(wide, targets, self.content[part], self.d2e)  # type: ignore[arg-type]
            sums = {name: term.sum() for name, term in terms.items()}
            loss = torch.stack([self.weights[name] * term for name, term in sums.items()]).sum()
        trained = [name for name, z in wide.items() if z.requires_grad] if loss.requires_grad else []
        found = torch.autograd.grad(loss, [wide[name] for name in trained], allow_unused=True) if trained else ()
        pairs = [(logits[name], one) for name, one in zip(trained, found, strict=True) if one is not None]
        detached = {name: term.detach() for name, term in sums.items()}
        return {**detached, **_counts(self.d2e, wide, targets)}, pairs  # type: ignore[arg-type]


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
