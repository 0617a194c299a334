"""A loss of hidden states, a few rows of logits at a time; torch only.

A chunk's gradient is computed in the forward, while its logits are there, and the backward only scales it. So no more
than one chunk's logits are in memory, and each is projected once.

Legend: N answer tokens, n those of a chunk, V vocabulary, H hidden size.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Project = Callable[[Tensor], Tensor]  # a language model's head, (n, H) → (n, V)
# Of a chunk: sums by name; and pairs of a tensor made of its logits and that tensor's gradient.
SumsAndGradients = tuple[dict[str, Tensor], list[tuple[Tensor, Tensor]]]


@dataclass(frozen=True)
class ChunkedObjective(ABC):
    """What is summed over chunks.

    Attributes:
        project: the language model's head; called once a chunk for all states that carry gradient.
        states: (N, H) each, by name.
        targets: (N,) the answer tokens.
        weights: name of a term → how often it counts in the loss.
        detached: the states whose logits carry no gradient, not to the head's weights either.
        heads: of states that have a head of their own; these are detached.
    """

    project: Project
    states: Mapping[str, Tensor]
    targets: Tensor
    weights: Mapping[str, float]
    detached: Collection[str]
    heads: Mapping[str, Project] = field(default_factory=dict, kw_only=True)

    @abstractmethod
    def of_chunk(self, part: slice, logits: dict[str, Tensor]) -> SumsAndGradients:
        """The chunk's sums, the terms first, and the gradients of the loss.

        Args:
            part: the chunk's rows.
            logits: (n, V) of each of the states, with gradient but for those `detached`.
        """

    def sums(self, parts: Sequence[slice], gradients: Gradients | None) -> dict[str, Tensor]:
        """`loss` and what `of_chunk` names, over all chunks; to be called without gradient."""
        chunks = [self._of_part(part, gradients) for part in parts]
        totals = {name: torch.stack([chunk[name] for chunk in chunks]).sum(dim=0) for name in chunks[0]}
        weighted = [weight * totals[name] for name, weight in self.weights.items() if name in totals]
        return {"loss": torch.stack(weighted).sum(dim=0), **totals}

    def _of_part(self, part: slice, gradients: Gradients | None) -> dict[str, Tensor]:
        pieces = {name: view[part].detach().requires_grad_(view.requires_grad) for name, view in self.states.items()}
        with torch.set_grad_enabled(gradients is not None):
            logits = self._logits(pieces)
        sums, pairs = self.of_chunk(part, logits)
        if gradients is not None:
            gradients.add(part, [*pieces.values()], pairs)
        return sums

    def _logits(self, pieces: Mapping[str, Tensor]) -> dict[str, Tensor]:
        with torch.no_grad():
            found = {name: head(pieces[name]) for name, head in self.heads.items()}
        for without in (False, True):
            names = [name for name in pieces if name not in self.heads and (name in self.detached) is without]
            if names:
                with torch.set_grad_enabled(torch.is_grad_enabled() and not without):
                    logits = self.project(torch.cat([pieces[name] for name in names])).chunk(len(names))
                found.update(zip(names, logits, strict=True))
        return {name: found[name] for name in pieces}


def sum_in_chunks(
    objective: ChunkedObjective,
    parameters: Sequence[Tensor],
    chunk_rows: int | None = None,
    chunks: int | None = None,
) -> dict[str, Tensor]:
    """The objective's sums; `loss` carries gradient to its states and to the head, and its backward can be run once.

    Args:
        parameters: those of the head, as `project` uses them; the ones that require gradients get them.
        chunk_rows: answer tokens a chunk; None for all at once.
        chunks: chunks at least, for a head that is gathered from several processes for each of its calls (ZeRO-3): all
            must then call it as often.
    """
    tokens = len(objective.targets)
    rows = tokens if chunk_rows is None else chunk_rows
    count = max(1, chunks or 1, -(-tokens // max(rows, 1)))
    parts = [slice(i * rows, (i + 1) * rows) for i in range(count)]  # the last ones may be empty
    if not torch.is_grad_enabled():
        return objective.sums(parts, None)
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    states = [*objective.states.values()]
    # A gathered head is whole only in a call and in a call's backward, and has to be when its gradients are handed
    # out. So it is called once more, without rows; that call's backward comes after the loss's.
    call = objective.project(states[0][:0]) if chunks is not None and trained else None
    names: list[str] = []
    gradients = Gradients(states, trained)
    sums = _GradientInForward.apply(objective, parts, gradients, names, call, *states, *trained)
    return dict(zip(names, sums, strict=True))


class Gradients:
    """Gradients of hidden states and of the head's parameters, filled chunk by chunk."""

    def __init__(self, states: Sequence[Tensor], parameters: Sequence[Tensor]) -> None:
        self._parameters = parameters
        self._of_states = [
            torch.zeros_like(state, dtype=_wide(state)) if state.requires_grad else None for state in states
        ]
        self._of_parameters: list[Tensor | None] = [None] * len(parameters)

    def add(self, part: slice, pieces: Sequence[Tensor], pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Take the gradients of a chunk's logits through the head.

        Args:
            part: the chunk's rows.
            pieces: the chunk's hidden states, for which the head was called.
            pairs: what came of them, and its gradients.
        """
        wanted = [piece for piece in pieces if piece.requires_grad] + [*self._parameters]
        of_logits = [gradient for _, gradient in pairs]
        pairs = [(z, gradient) for z, gradient in pairs if z.requires_grad]
        if not wanted or not pairs:
            return
        scale = _scale_for_float16(pieces, of_logits) if any(z.dtype == torch.float16 for z, _ in pairs) else None
        found = torch.autograd.grad(
            [z for z, _ in pairs],
            wanted,
            [(gradient if scale is None else gradient * scale).to(z.dtype) for z, gradient in pairs],
            allow_unused=True,
        )
        exact = iter(one if one is None or scale is None else one.to(_wide(one)) / scale for one in found)
        for total in self._of_states:
            if total is not None and (one := next(exact)) is not None:
                total[part] = one
        for i, one in enumerate(exact):
            total = self._of_parameters[i]
            self._of_parameters[i] = one if total is None else total if one is None else total.add_(one)

    def times(self, factor: Tensor) -> list[Tensor | None]:
        """All of them multiplied by the loss's own gradient, in place."""
        return [one if one is None else one.mul_(factor) for one in (*self._of_states, *self._of_parameters)]


class _GradientInForward(torch.autograd.Function):
    """The sums of a `ChunkedObjective`, whose gradients are ready when the forward ends.

    The head's parameters are inputs, so that their gradients are handed out in the backward, where the hooks of DDP,
    FSDP and DeepSpeed wait for them.
    """

    @staticmethod
    def forward(
        ctx: Any,
        objective: ChunkedObjective,
        parts: Sequence[slice],
        gradients: Gradients,
        names: list[str],
        call: Tensor | None,
        *inputs: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.gradients, ctx.dtypes = gradients, [tensor.dtype for tensor in inputs]
        ctx.of_call = None if call is None else torch.zeros_like(call)
        sums = objective.sums(parts, gradients)
        names += sums
        loss, *others = sums.values()
        ctx.mark_non_differentiable(*others)
        return loss, *others

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *unused: Any) -> tuple[Tensor | None, ...]:
        if ctx.gradients is None:
            raise RuntimeError("a second backward of a chunked loss; the gradients were given away by the first")
        scaled, ctx.gradients = ctx.gradients.times(gradient), None
        of_inputs = (one if one is None else one.to(dtype) for one, dtype in zip(scaled, ctx.dtypes, strict=True))
        return None, None, None, None, ctx.of_call, *of_inputs


def _scale_for_float16(states: Sequence[Tensor], to_logits: Sequence[Tensor]) -> Tensor:
    """() what gradients in float16 are multiplied by on their way through the head.

    The loss is not scaled yet, and most of p is below what float16 holds. As large as no product can leave its range:
    the bound is that of the weights' gradient, a sum over rows, and of the states', with weights of at most 16.
    """
    largest = torch.stack([state.abs().max() for state in states if state.numel()] or [states[0].new_ones(())]).max()
    over_rows = sum(gradient.abs().sum(dim=0).amax() for gradient in to_logits) * largest
    over_tokens = sum(gradient.abs().sum(dim=1).max() for gradient in to_logits if len(gradient))
    bound = torch.maximum(over_rows, torch.as_tensor(over_tokens, device=over_rows.device)).clamp(min=1)
    return torch.exp2(torch.floor(torch.log2(4096 / bound)))


def at_least_float32(view: Tensor) -> Tensor:
    """The same numbers in float32, or float64 where they are."""
    return view if view.dtype in (torch.float32, torch.float64) else view.float()


def _wide(tensor: Tensor) -> torch.dtype:
    """The dtype that a gradient is kept in until it is scaled."""
    return torch.float32 if tensor.dtype == torch.float16 else tensor.dtype
