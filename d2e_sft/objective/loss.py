"""The D²E objective; torch only, one row a token.

`d2e_loss` is the reference, as the paper writes it. `chunked_d2e_loss` is the same number from hidden states, with
the gradient in closed form and a few rows of logits in memory at a time.

Legend: N answer tokens, V vocabulary, H hidden size. Everything is summed over tokens; the caller divides by the
number of answer tokens of the global batch, which only it knows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

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
    plain_correct: Tensor  # (), those of the original view's own argmax
    imagined_correct: Tensor  # (), those of the imagined view's; 0 without one


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
    imagined: Tensor | None = None,
    refined: Tensor | None = None,
    alpha: float = 0.5,
    kl_weight: float = 1.0,
    kl_direction: KLDirection = "original_refined",
    linear: bool = True,
    others_detached: bool = False,
    chunk_rows: int | None = None,
    chunks: int = 1,
) -> D2ELoss:
    """`d2e_loss` of the views' hidden states; logits of more than one chunk are recomputed in the backward.

    Args:
        original, imagined, refined: (N, H) hidden states, otherwise as for `d2e_loss`.
        project: the language model's head, (n, H) → (n, V); called once a chunk, and with an imagined view once more,
            without gradient, for what either view alone gets right.
        linear: the head is linear without a bias, so states are subtracted in place of logits (two projections for
            each answer token in place of three).
        others_detached: only the original's logits carry gradient, to the head's weights too.
        chunk_rows: answer tokens a chunk; None for all at once.
        chunks: calls of `project` at least; for heads that are gathered from several processes, all of which must
            then call as often.

    Raises:
        ValueError: a view's shape differs from `original`'s.
    """
    _check_shapes(original, imagined, refined)
    views = {"original": original, "imagined": imagined, "refined": refined}
    present = {name: view for name, view in views.items() if view is not None}
    if linear and not others_detached:
        present = {name: debias(view, imagined, alpha) for name, view in present.items() if name != "imagined"}
    has_refined = refined is not None

    def part(first: _Once | None, targets: Tensor, *states: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        logits = dict(zip(present, _project_each(project, states, others_detached), strict=True))
        if "imagined" in logits:
            z_imagined = logits.pop("imagined")
            # As in d2e_loss: differences are taken in float32 at least.
            logits = {
                name: debias(_at_least_float32(view), _at_least_float32(z_imagined), alpha)
                for name, view in logits.items()
            }
        result: tuple[Tensor, Tensor, Tensor, Tensor] = _TokenLoss.apply(
            logits["original"], logits["refined"] if has_refined else None, targets, kl_weight, kl_direction,
            first is not None and first.time(),
        )  # fmt: skip
        return result

    rows = len(targets) if chunk_rows is None else chunk_rows
    count = max(1, chunks, -(-len(targets) // max(rows, 1)))
    hits = _hits_of_views(project, original, imagined, targets, rows, count)
    if count == 1:
        return _complete(part(None, targets, *present.values()), hits)
    parts = [
        checkpoint(part, _Once(), *pieces, use_reentrant=False)
        for pieces in zip(
            *(_pieces(tensor, rows, count) for tensor in (targets, *present.values())),
            strict=True,
        )
    ]
    return _complete(tuple(torch.stack(column).sum(dim=0) for column in zip(*parts, strict=True)), hits)


def _complete(sums: tuple[Tensor, ...], hits: tuple[Tensor, Tensor] | None) -> D2ELoss:
    loss, ce, kl, correct = sums
    plain, imagined = (correct, torch.zeros_like(correct)) if hits is None else hits
    return D2ELoss(loss, ce, kl, correct, plain_correct=plain, imagined_correct=imagined)


@torch.no_grad()
def _hits_of_views(
    project: Callable[[Tensor], Tensor],
    original: Tensor,
    imagined: Tensor | None,
    targets: Tensor,
    rows: int,
    count: int,
) -> tuple[Tensor, Tensor] | None:
    """Tokens that the original and the imagined view get right by themselves; None where the first is the debiased."""
    if imagined is None:
        return None
    right = torch.zeros(2, dtype=torch.long, device=targets.device)
    for wanted, *states in zip(
        *(_pieces(tensor, rows, count) for tensor in (targets, original, imagined)), strict=True
    ):
        logits = project(torch.cat(states)).chunk(2)
        right += torch.stack([_hits(view, wanted) for view in logits])
    return right[0], right[1]


def _hits(logits: Tensor, targets: Tensor) -> Tensor:
    return (logits.argmax(dim=-1) == targets).sum()


class _Once:
    """Tells the first call, whose gradients checkpointing throws away, from the one in the backward."""

    def __init__(self) -> None:
        self._called = False

    def time(self) -> bool:
        first, self._called = not self._called, True
        return first


class _TokenLoss(torch.autograd.Function):
    """Debiased logits u (and v, refined) → sums of loss, ce, kl and correct tokens, with the gradient beside them.

    With p = softmax u, q = softmax v, y one-hot, d = log p − log q, for KL(p ‖ q) of a token K = Σ p·d:
    ∂u = p − y + λ·p·(d − K), ∂v = λ·(q − p); for KL(q ‖ p), K = −Σ q·d: ∂u = p − y + λ·(p − q), ∂v = λ·q·(−d − K).
    """

    @staticmethod
    def forward(
        ctx: Any,
        u: Tensor,
        v: Tensor | None,
        targets: Tensor,
        kl_weight: float,
        kl_direction: KLDirection,
        values_only: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        correct = _hits(u, targets)
        log_p = F.log_softmax(_at_least_float32(u), dim=-1)
        ce = F.nll_loss(log_p, targets, reduction="sum")
        kl, to_u, to_v = torch.zeros_like(ce), log_p, None
        forwards = kl_direction == "original_refined"
        if v is not None:
            log_q = F.log_softmax(_at_least_float32(v), dim=-1)
            each, difference, p, q = _divergence(log_p, log_q, forwards)
            kl = each.sum()
            if not values_only and forwards:
                to_u = difference.sub_(each).mul_(p).mul_(kl_weight).add_(p)
                to_v = q.sub_(p).mul_(kl_weight)
            elif not values_only:
                to_v = difference.add_(each).mul_(q).mul_(-kl_weight)
                to_u = p.mul_(1 + kl_weight).sub_(q, alpha=kl_weight)
        if values_only:
            # Checkpointing keeps neither, but counts them and compares their shapes.
            ctx.save_for_backward(_nothing_like(u), None if v is None else _nothing_like(v))
        else:
            to_u = log_p.exp_() if v is None else to_u
            to_u[torch.arange(len(targets), device=targets.device), targets] -= 1
            # Not in float16: the loss is not scaled yet, and most of p is below what that holds.
            kept = torch.float32 if u.dtype == torch.float16 else u.dtype
            ctx.save_for_backward(to_u.to(kept), None if to_v is None else to_v.to(kept))
        ctx.dtype = u.dtype
        loss = ce + kl_weight * kl
        # Copies: the same tensor twice among the outputs would be one output.
        ce, kl = ce.clone(), kl.clone()
        ctx.mark_non_differentiable(ce, kl, correct)
        return loss, ce, kl, correct

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *unused: Any) -> tuple[Tensor, Tensor | None, None, None, None, None]:
        to_u, to_v = ctx.saved_tensors
        return (
            (to_u * gradient).to(ctx.dtype),
            None if to_v is None else (to_v * gradient).to(ctx.dtype),
            None,
            None,
            None,
            None,
        )


def _divergence(log_p: Tensor, log_q: Tensor, forwards: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """KL of each row (n, 1), log p − log q, p and q; overwrites its arguments."""
    p = log_p.exp()
    difference = log_p.sub_(log_q)
    q = log_q.exp_()
    each = torch.linalg.vecdot(p, difference) if forwards else -torch.linalg.vecdot(q, difference)
    return each[:, None], difference, p, q


def _nothing_like(tensor: Tensor) -> Tensor:
    """A tensor of the same shape that holds one number."""
    return tensor.new_zeros(()).expand(tensor.shape)


def _check_shapes(original: Tensor, imagined: Tensor | None, refined: Tensor | None) -> None:
    for name, view in (("imagined", imagined), ("refined", refined)):
        if view is not None and view.shape != original.shape:
            raise ValueError(f"{name}: shape {tuple(view.shape)}; expected that of original, {tuple(original.shape)}")


def _project_each(
    project: Callable[[Tensor], Tensor], states: tuple[Tensor, ...], others_detached: bool
) -> tuple[Tensor, ...]:
    """Logits of each of the states, the first one's alone with gradient if the others are detached."""
    if not others_detached or len(states) == 1:
        return project(torch.cat(states)).chunk(len(states))
    with torch.no_grad():
        others = project(torch.cat(states[1:])).chunk(len(states) - 1)
    return (project(states[0]), *others)


def _pieces(tensor: Tensor, rows: int, count: int) -> list[Tensor]:
    """`count` pieces of at most `rows` rows; the last ones may be empty."""
    return [tensor[i * rows : (i + 1) * rows] for i in range(count)]


def _at_least_float32(view: Tensor) -> Tensor:
    return view if view.dtype in (torch.float32, torch.float64) else view.float()
