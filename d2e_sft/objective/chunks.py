"""The objective from hidden states, with the logits of one chunk of answer tokens in memory at a time.

A chunk's gradient is computed in the forward, while its logits exist; the backward scales it. Each logit is made once.

Legend: N answer tokens, n tokens of a chunk, V vocabulary, H hidden size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from d2e_sft.objective.objectives import AnswerTokens, Objective, Project, at_least_float32


@dataclass(frozen=True)
class Head:
    """The head of a language model.

    Attributes:
        project: (n, H) → (n, V), called once per chunk and kind of view; it uses `parameters`.
        chunk_rows: Answer tokens per chunk; None for one chunk.
        min_chunks: Under ZeRO-3 all processes must call the head equally often.
    """

    project: Project
    parameters: Sequence[Tensor] = ()
    chunk_rows: int | None = None
    min_chunks: int | None = None

    def parts(self, count: int) -> list[slice]:
        """Return the chunks of `count` answer tokens; the last ones may be empty."""
        rows = count if self.chunk_rows is None else self.chunk_rows
        chunks = max(1, self.min_chunks or 1, -(-count // max(rows, 1)))
        return [slice(i * rows, (i + 1) * rows) for i in range(chunks)]


def sum_in_chunks(
    objective: Objective, head: Head, states: Mapping[Any, Tensor], tokens: AnswerTokens
) -> dict[str, Tensor]:
    """Return `Objective.sums` of hidden states (N, H) per view; the backward of `loss` can run once."""
    loss = _ChunkedLoss(objective, head, states, tokens, head.parts(len(tokens.targets)))
    if not torch.is_grad_enabled():
        return loss.sums(None)
    trained = [parameter for parameter in head.parameters if parameter.requires_grad]
    inputs = [*states.values()]
    # A gathered head is whole only inside a call and inside the backward of a call, and must be whole when its
    # gradients are handed out. So it is called once more, without rows; the backward of that call follows the loss's.
    call = head.project(inputs[0][:0]) if head.min_chunks is not None and trained else None
    names: list[str] = []
    sums = _GradientInForward.apply(loss, _Gradients(inputs, trained), names, call, *inputs, *trained)
    return dict(zip(names, sums, strict=True))


@dataclass(frozen=True)
class _ChunkedLoss:
    objective: Objective
    head: Head
    states: Mapping[Any, Tensor]
    tokens: AnswerTokens
    parts: Sequence[slice]

    def sums(self, gradients: _Gradients | None) -> dict[str, Tensor]:
        """Sum over chunks and collect gradients; call without gradient."""
        chunks = [self._of_chunk(part, gradients) for part in self.parts]
        return {name: torch.stack([chunk[name] for chunk in chunks]).sum(dim=0) for name in chunks[0]}

    def _of_chunk(self, part: slice, gradients: _Gradients | None) -> dict[str, Tensor]:
        pieces = {
            view: state[part].detach().requires_grad_(state.requires_grad) for view, state in self.states.items()
        }
        with torch.set_grad_enabled(gradients is not None):
            logits = self._logits(pieces)
            # Leaves, so that the gradients at the logits can be scaled for float16 before they go through the head.
            leaves = {view: at_least_float32(z.detach()).requires_grad_(z.requires_grad) for view, z in logits.items()}
            sums = self.objective.sums(leaves, self.tokens[part])
        loss = sums["loss"]
        if gradients is not None and loss.requires_grad:
            views = [view for view, z in leaves.items() if z.requires_grad]
            slopes = torch.autograd.grad(loss, [leaves[view] for view in views], allow_unused=True)
            pairs = [(logits[view], slope) for view, slope in zip(views, slopes, strict=True) if slope is not None]
            gradients.add(part, [*pieces.values()], pairs)
        return {**sums, "loss": loss.detach()}

    def _logits(self, pieces: Mapping[Any, Tensor]) -> dict[Any, Tensor]:
        """Project each view, detached ones without gradient."""
        projected = dict[Any, Tensor]()
        all_views = self.objective.d2e.view_gradients == "all"
        trained = [view for view in pieces if all_views or view == "original"]
        for views, enabled in ((trained, torch.is_grad_enabled()), ([v for v in pieces if v not in trained], False)):
            if views:
                with torch.set_grad_enabled(enabled):
                    logits = self.head.project(torch.cat([pieces[view] for view in views])).chunk(len(views))
                projected.update(zip(views, logits, strict=True))
        return {view: projected[view] for view in pieces}


class _Gradients:
    """Gradients of hidden states and of the head's parameters, filled chunk by chunk."""

    def __init__(self, states: Sequence[Tensor], parameters: Sequence[Tensor]) -> None:
        self._parameters = parameters
        self._of_states = [
            torch.zeros_like(state, dtype=_wide(state)) if state.requires_grad else None for state in states
        ]
        self._of_parameters: list[Tensor | None] = [None] * len(parameters)

    def add(self, part: slice, pieces: Sequence[Tensor], pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Propagate gradients through the head, from pairs of a view's logits and their gradient in a chunk."""
        inputs = [piece for piece in pieces if piece.requires_grad] + [*self._parameters]
        if not inputs or not pairs:
            return
        scale = None
        if any(z.dtype == torch.float16 for z, _ in pairs):
            scale = _scale_for_float16(pieces, [gradient for _, gradient in pairs])
        products = torch.autograd.grad(
            [z for z, _ in pairs],
            inputs,
            [(gradient if scale is None else gradient * scale).to(z.dtype) for z, gradient in pairs],
            allow_unused=True,
        )
        exact = iter(
            product if product is None or scale is None else product.to(_wide(product)) / scale for product in products
        )
        for total in self._of_states:
            if total is not None and (product := next(exact)) is not None:
                total[part] = product
        for i, product in enumerate(exact):
            total = self._of_parameters[i]
            self._of_parameters[i] = product if total is None else total if product is None else total.add_(product)

    def times(self, factor: Tensor) -> list[Tensor | None]:
        """Multiply all gradients by that of the loss, in place."""
        return [
            gradient if gradient is None else gradient.mul_(factor)
            for gradient in (*self._of_states, *self._of_parameters)
        ]


class _GradientInForward(torch.autograd.Function):
    """The sums of a `_ChunkedLoss`; their gradients are ready when the forward ends."""

    # The head's parameters are inputs: hooks of DDP, FSDP and DeepSpeed expect their gradients in the backward.
    @staticmethod
    def forward(
        ctx: Any, chunked: _ChunkedLoss, gradients: _Gradients, names: list[str], call: Tensor | None, *inputs: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.gradients, ctx.dtypes = gradients, [tensor.dtype for tensor in inputs]
        ctx.of_call = None if call is None else torch.zeros_like(call)
        sums = chunked.sums(gradients)
        names += sums
        loss, *terms = sums.values()
        ctx.mark_non_differentiable(*terms)
        return loss, *terms

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *unused: Any) -> tuple[Tensor | None, ...]:
        if ctx.gradients is None:
            raise RuntimeError("a second backward of a chunked loss; the gradients were given away by the first")
        scaled, ctx.gradients = ctx.gradients.times(gradient), None
        of_inputs = (
            of_input if of_input is None else of_input.to(dtype)
            for of_input, dtype in zip(scaled, ctx.dtypes, strict=True)
        )
        return None, None, None, ctx.of_call, *of_inputs


def _scale_for_float16(states: Sequence[Tensor], to_logits: Sequence[Tensor]) -> Tensor:
    """() the largest factor of float16 gradients for which no product with the head can overflow."""
    # The loss is not scaled yet, and float16 cannot hold most of p. The bounds are the weights' gradient, a sum over
    # rows, and the states', with weights of at most 16.
    largest = torch.stack([state.abs().max() for state in states if state.numel()] or [states[0].new_ones(())]).max()
    over_rows = sum(gradient.abs().sum(dim=0).amax() for gradient in to_logits) * largest
    over_tokens = sum(gradient.abs().sum(dim=1).max() for gradient in to_logits if len(gradient))
    bound = torch.maximum(over_rows, torch.as_tensor(over_tokens, device=over_rows.device)).clamp(min=1)
    return torch.exp2(torch.floor(torch.log2(4096 / bound)))


def _wide(tensor: Tensor) -> torch.dtype:
    """Return the dtype of a gradient until it is scaled."""
    return torch.float32 if tensor.dtype == torch.float16 else tensor.dtype
