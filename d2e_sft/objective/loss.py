"""The D²E objective; torch only, one row a token.

`d2e_loss` is the reference, as the paper writes it. `chunked_d2e_loss` is the same number from hidden states, with a
few rows of logits in memory at a time: a chunk's gradient is computed in the forward, while its logits are there (in
closed form to the logits, by autograd from there through the head), and the backward only scales it.

Legend: N answer tokens, V vocabulary, H hidden size. Everything is summed over tokens; the caller divides by the
number of answer tokens of the global batch, which only it knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

KLDirection = Literal["original_refined", "refined_original"]
# 64 MiB of float32 for each distribution.
CHUNK_ELEMENTS = 2**24


@dataclass(frozen=True)
class D2ELoss:
    """Sums over answer tokens; `loss` = `ce` + kl_weight · `kl` carries gradient, the others do not."""

    loss: Tensor  # ()
    ce: Tensor  # ()
    kl: Tensor  # ()
    correct: Tensor  # (), tokens whose debiased argmax is the answer token
    plain_correct: Tensor | None  # (), those of the original view's own argmax; None where it was not asked for
    imagined_correct: Tensor | None  # (), those of the imagined view's; 0 without one


def debias(original: Tensor, imagined: Tensor | None, alpha: float | Tensor) -> Tensor:
    """Debiased logits `original − α · imagined` (PIPER paper, equations 1 and 2); same shape as `original`."""
    return original if imagined is None else original - alpha * imagined


def d2e_loss(
    original: Tensor,
    targets: Tensor,
    *,
    imagined: Tensor | None = None,
    refined: Tensor | None = None,
    alpha: float = 0.5,
    kl_weight: float = 1.0,
    kl_direction: KLDirection = "original_refined",
) -> D2ELoss:
    """Cross entropy of the debiased logits plus KL between debiased original and debiased refined.

    PIPER paper, equations 3 to 9. Computed in float32 at least.

    Args:
        original: (N, V) logits of the original view at the positions that predict the answer tokens.
        targets: (N,) the answer tokens.
        imagined: (N, V), or None for no debiasing.
        refined: (N, V), or None for no distillation.
        alpha: the debias ratio.
        kl_weight: λ.
        kl_direction: `original_refined` is KL(original ‖ refined), equation 8; the other is equation 5.

    Raises:
        ValueError: a view's shape differs from `original`'s.
    """
    _check_shapes(original, imagined, refined)
    imagined = None if imagined is None else _at_least_float32(imagined)
    debiased = debias(_at_least_float32(original), imagined, alpha)
    log_p = F.log_softmax(debiased, dim=-1)
    ce = F.nll_loss(log_p, targets, reduction="sum")
    kl = torch.zeros_like(ce)
    loss = ce
    if refined is not None:
        log_q = F.log_softmax(debias(_at_least_float32(refined), imagined, alpha), dim=-1)
        first, second = (log_p, log_q) if kl_direction == "original_refined" else (log_q, log_p)
        # F.kl_div(input, target) is KL(target ‖ input).
        kl = F.kl_div(second, first, reduction="sum", log_target=True)
        loss = ce + kl_weight * kl
    correct = _hits(debiased, targets)
    return D2ELoss(
        loss=loss,
        ce=ce.detach(),
        kl=kl.detach(),
        correct=correct,
        plain_correct=correct if imagined is None else _hits(original, targets),
        imagined_correct=torch.zeros_like(correct) if imagined is None else _hits(imagined, targets),
    )


def chunked_d2e_loss(
    original: Tensor,
    targets: Tensor,
    project: Callable[[Tensor], Tensor],
    *,
    parameters: Sequence[Tensor] = (),
    imagined: Tensor | None = None,
    refined: Tensor | None = None,
    alpha: float = 0.5,
    kl_weight: float = 1.0,
    kl_direction: KLDirection = "original_refined",
    linear: bool = True,
    others_detached: bool = False,
    view_accuracy: bool = True,
    chunk_rows: int | None = None,
    chunks: int | None = None,
) -> D2ELoss:
    """`d2e_loss` of the views' hidden states; its backward can be run once.

    Args:
        original, imagined, refined: (N, H) hidden states, otherwise as for `d2e_loss`.
        project: the language model's head, (n, H) → (n, V); called once a chunk.
        parameters: those of the head, as `project` uses them; the ones that require gradients get them.
        linear: the head is linear without a bias, so states are subtracted in place of logits (two projections for
            each answer token in place of three).
        others_detached: only the original's logits carry gradient, to the head's weights too.
        view_accuracy: count what the original and the imagined view get right by themselves. Where states are
            subtracted, both are projected for nothing else: two more rows an answer token, without gradient.
        chunk_rows: answer tokens a chunk; None for all at once.
        chunks: chunks at least, for a head that is gathered from several processes for each of its calls (ZeRO-3): all
            must then call it as often.

    Raises:
        ValueError: a view's shape differs from `original`'s.
    """
    _check_shapes(original, imagined, refined)
    views = {"original": original, "imagined": imagined, "refined": refined}
    states = {name: view for name, view in views.items() if view is not None}
    if linear and not others_detached:
        states = {name: debias(view, imagined, alpha) for name, view in states.items() if name != "imagined"}
    pair = (original.detach(), imagined.detach()) if imagined is not None and view_accuracy else None
    objective = _ChunkedObjective(project, states, targets, pair, alpha, kl_weight, kl_direction, others_detached)
    rows = len(targets) if chunk_rows is None else chunk_rows
    count = max(1, chunks or 1, -(-len(targets) // max(rows, 1)))
    parts = [slice(i * rows, (i + 1) * rows) for i in range(count)]  # the last ones may be empty
    if torch.is_grad_enabled():
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        # A gathered head is whole only in a call and in a call's backward, and has to be when its gradients are handed
        # out. So it is called once more, without rows; that call's backward comes after the loss's.
        call = project(original[:0]) if chunks is not None and trained else None
        gradients = _Gradients([*states.values()], trained)
        sums: tuple[Tensor, ...] = _GradientInForward.apply(
            objective, parts, gradients, call, *states.values(), *trained
        )
    else:
        sums = objective.sums(parts, None)
    loss, ce, kl, correct, *of_views = sums
    if imagined is None:
        return D2ELoss(loss, ce, kl, correct, plain_correct=correct, imagined_correct=torch.zeros_like(correct))
    plain_correct, imagined_correct = of_views or (None, None)
    return D2ELoss(loss, ce, kl, correct, plain_correct, imagined_correct)


@dataclass(frozen=True)
class _ChunkedObjective:
    """What `chunked_d2e_loss` is asked for: `states` to project for the loss, `pair` to count what each gets right."""

    project: Callable[[Tensor], Tensor]
    states: Mapping[str, Tensor]
    targets: Tensor
    pair: tuple[Tensor, Tensor] | None
    alpha: float
    kl_weight: float
    kl_direction: KLDirection
    others_detached: bool

    def sums(self, parts: Sequence[slice], gradients: _Gradients | None) -> tuple[Tensor, ...]:
        """loss, ce, kl, correct and, with a pair, what either view gets right; to be called without gradient."""
        totals = [
            torch.stack(column).sum(dim=0) for column in zip(*(self._part(p, gradients) for p in parts), strict=True)
        ]
        return totals[0] + self.kl_weight * totals[1], *totals

    def _part(self, part: slice, gradients: _Gradients | None) -> tuple[Tensor, ...]:
        targets = self.targets[part]
        pieces = {name: view[part].detach().requires_grad_(view.requires_grad) for name, view in self.states.items()}
        with torch.set_grad_enabled(gradients is not None):
            logits = dict(
                zip(pieces, _project_each(self.project, [*pieces.values()], self.others_detached), strict=True)
            )
            projected = [logits[name].detach() for name in ("original", "imagined") if "imagined" in logits]
            debiased = self._debiased(logits)
        ce, kl, correct, *to_logits = _loss_and_gradients(
            debiased["original"], debiased.get("refined"), targets, self.kl_weight, self.kl_direction
        )
        if gradients is not None:
            gradients.add(part, [*pieces.values()], [*debiased.values()], to_logits)
        if self.pair is None:
            return ce, kl, correct
        pair = projected or self.project(torch.cat([view[part] for view in self.pair])).chunk(2)
        return ce, kl, correct, *(_hits(view, targets) for view in pair)

    def _debiased(self, logits: dict[str, Tensor]) -> dict[str, Tensor]:
        if "imagined" not in logits:  # there is none, or it was subtracted from the states
            return logits
        # As in d2e_loss: differences are taken in float32 at least.
        imagined = _at_least_float32(logits["imagined"])
        return {
            name: debias(_at_least_float32(view), imagined, self.alpha)
            for name, view in logits.items()
            if name != "imagined"
        }


class _Gradients:
    """Gradients of hidden states and of the head's parameters, filled chunk by chunk."""

    def __init__(self, states: Sequence[Tensor], parameters: Sequence[Tensor]) -> None:
        self._parameters = parameters
        self._of_states = [
            torch.zeros_like(state, dtype=_wide(state)) if state.requires_grad else None for state in states
        ]
        self._of_parameters: list[Tensor | None] = [None] * len(parameters)

    def add(
        self, part: slice, pieces: Sequence[Tensor], logits: Sequence[Tensor], to_logits: Sequence[Tensor]
    ) -> None:
        """Take the gradients of a chunk's logits through the head.

        Args:
            part: the chunk's rows.
            pieces: the chunk's hidden states, for which the head was called.
            logits: what came of them.
            to_logits: the gradients of `logits`.
        """
        wanted = [piece for piece in pieces if piece.requires_grad] + [*self._parameters]
        pairs = [(z, gradient) for z, gradient in zip(logits, to_logits, strict=True) if z.requires_grad]
        if not wanted or not pairs:
            return
        scale = _scale_for_float16(pieces, to_logits) if any(z.dtype == torch.float16 for z, _ in pairs) else None
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
    """The sums of a `_ChunkedObjective`, whose gradients are ready when the forward ends.

    The head's parameters are inputs, so that their gradients are handed out in the backward, where the hooks of DDP,
    FSDP and DeepSpeed wait for them.
    """

    @staticmethod
    def forward(
        ctx: Any,
        objective: _ChunkedObjective,
        parts: Sequence[slice],
        gradients: _Gradients,
        call: Tensor | None,
        *inputs: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.gradients, ctx.dtypes = gradients, [tensor.dtype for tensor in inputs]
        ctx.of_call = None if call is None else torch.zeros_like(call)
        sums = objective.sums(parts, gradients)
        ctx.mark_non_differentiable(*sums[1:])
        return sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *unused: Any) -> tuple[Tensor | None, ...]:
        if ctx.gradients is None:
            raise RuntimeError("chunked_d2e_loss: a second backward; the gradients were given away by the first")
        scaled, ctx.gradients = ctx.gradients.times(gradient), None
        return (
            None,
            None,
            None,
            ctx.of_call,
            *(one if one is None else one.to(dtype) for one, dtype in zip(scaled, ctx.dtypes, strict=True)),
        )


def _loss_and_gradients(
    u: Tensor, v: Tensor | None, targets: Tensor, kl_weight: float, kl_direction: KLDirection
) -> tuple[Tensor, ...]:
    """Debiased logits u (and v, refined) → sums of ce, kl and correct tokens, and the gradients of ce + λ·kl.

    With p = softmax u, q = softmax v, y one-hot, d = log p − log q, for KL(p ‖ q) of a token K = Σ p·d:
    ∂u = p − y + λ·p·(d − K), ∂v = λ·(q − p); for KL(q ‖ p), K = −Σ q·d: ∂u = p − y + λ·(p − q), ∂v = λ·q·(−d − K).
    """
    correct = _hits(u, targets)
    log_p = F.log_softmax(_at_least_float32(u), dim=-1)
    ce = F.nll_loss(log_p, targets, reduction="sum")
    if v is None:
        return ce, torch.zeros_like(ce), correct, _minus_one_at(targets, log_p.exp_())
    log_q = F.log_softmax(_at_least_float32(v), dim=-1)
    forwards = kl_direction == "original_refined"
    each, difference, p, q = _divergence(log_p, log_q, forwards)
    if forwards:
        to_u = difference.sub_(each).mul_(p).mul_(kl_weight).add_(p)
        to_v = q.sub_(p).mul_(kl_weight)
    else:
        to_v = difference.add_(each).mul_(q).mul_(-kl_weight)
        to_u = p.mul_(1 + kl_weight).sub_(q, alpha=kl_weight)
    return ce, each.sum(), correct, _minus_one_at(targets, to_u), to_v


def _minus_one_at(targets: Tensor, gradient: Tensor) -> Tensor:
    gradient[torch.arange(len(targets), device=targets.device), targets] -= 1
    return gradient


def _divergence(log_p: Tensor, log_q: Tensor, forwards: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """KL of each row (n, 1), log p − log q, p and q; overwrites its arguments."""
    p = log_p.exp()
    difference = log_p.sub_(log_q)
    q = log_q.exp_()
    each = torch.linalg.vecdot(p, difference) if forwards else -torch.linalg.vecdot(q, difference)
    return each[:, None], difference, p, q


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


def _project_each(
    project: Callable[[Tensor], Tensor], states: Sequence[Tensor], others_detached: bool
) -> tuple[Tensor, ...]:
    """Logits of each of the states, the first one's alone with gradient if the others are detached."""
    if not others_detached or len(states) == 1:
        return project(torch.cat([*states])).chunk(len(states))
    with torch.no_grad():
        others = project(torch.cat([*states[1:]])).chunk(len(states) - 1)
    return (project(states[0]), *others)


def _hits(logits: Tensor, targets: Tensor) -> Tensor:
    return (logits.argmax(dim=-1) == targets).sum()


def _check_shapes(original: Tensor, imagined: Tensor | None, refined: Tensor | None) -> None:
    for name, view in (("imagined", imagined), ("refined", refined)):
        if view is not None and view.shape != original.shape:
            raise ValueError(f"{name}: shape {tuple(view.shape)}; expected that of original, {tuple(original.shape)}")


def _at_least_float32(view: Tensor) -> Tensor:
    return view if view.dtype in (torch.float32, torch.float64) else view.float()


def _wide(tensor: Tensor) -> torch.dtype:
    """The dtype that a gradient is kept in until it is scaled."""
    return torch.float32 if tensor.dtype == torch.float16 else tensor.dtype
