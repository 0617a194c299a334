"""The D²E objective; torch only, one row a token.

`d2e_loss` is the reference, as the paper writes it. `chunked_d2e_loss` is the same number from hidden states, with a
few rows of logits in memory at a time (see `chunks`), whose gradient is in closed form.

Legend: N answer tokens, V vocabulary, H hidden size. Everything is summed over tokens; the caller divides by the
number of answer tokens of the global batch, which only it knows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from d2e_sft.objective.chunks import ChunkedObjective, SumsAndGradients, at_least_float32, sum_in_chunks

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
    token_weights: Tensor | None = None,
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
        token_weights: (N,) how often each token's loss counts; None for once.

    Raises:
        ValueError: a view's shape differs from `original`'s.
    """
    _check_shapes(original, imagined, refined)
    imagined = None if imagined is None else at_least_float32(imagined)
    debiased = debias(at_least_float32(original), imagined, alpha)
    log_p = F.log_softmax(debiased, dim=-1)
    ce = weighted_sum(F.nll_loss(log_p, targets, reduction="none"), token_weights)
    kl = torch.zeros_like(ce)
    loss = ce
    if refined is not None:
        log_q = F.log_softmax(debias(at_least_float32(refined), imagined, alpha), dim=-1)
        first, second = (log_p, log_q) if kl_direction == "original_refined" else (log_q, log_p)
        # F.kl_div(input, target) is KL(target ‖ input).
        kl = weighted_sum(F.kl_div(second, first, reduction="none", log_target=True).sum(dim=-1), token_weights)
        loss = ce + kl_weight * kl
    correct = count_hits(debiased, targets)
    return D2ELoss(
        loss=loss,
        ce=ce.detach(),
        kl=kl.detach(),
        correct=correct,
        plain_correct=correct if imagined is None else count_hits(original, targets),
        imagined_correct=torch.zeros_like(correct) if imagined is None else count_hits(imagined, targets),
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
    token_weights: Tensor | None = None,
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
    weights = {"ce": 1.0, "kl": kl_weight}
    detached = ("imagined", "refined") if others_detached else ()
    objective = _ChunkedD2E(project, states, targets, weights, detached, pair, alpha, kl_direction, token_weights)
    sums = sum_in_chunks(objective, parameters, chunk_rows, chunks)
    if imagined is None:
        correct = sums["correct"]
        return D2ELoss(**sums, plain_correct=correct, imagined_correct=torch.zeros_like(correct))
    plain_correct, imagined_correct = (sums.pop(name, None) for name in ("plain_correct", "imagined_correct"))
    return D2ELoss(**sums, plain_correct=plain_correct, imagined_correct=imagined_correct)


@dataclass(frozen=True)
class _ChunkedD2E(ChunkedObjective):
    """The objective in closed form; of `pair` is counted what each view gets right by itself."""

    pair: tuple[Tensor, Tensor] | None
    alpha: float
    kl_direction: KLDirection
    token_weights: Tensor | None

    def of_chunk(self, part: slice, logits: dict[str, Tensor]) -> SumsAndGradients:
        """As `ChunkedObjective` has it."""
        projected = [logits[name].detach() for name in ("original", "imagined") if "imagined" in logits]
        targets = self.targets[part]
        with torch.enable_grad():
            debiased = self._debiased(logits)
        counted = None if self.token_weights is None else self.token_weights[part]
        ce, kl, correct, *to_logits = _loss_and_gradients(
            debiased["original"], debiased.get("refined"), targets, self.weights["kl"], self.kl_direction, counted
        )
        sums = {"ce": ce, "kl": kl, "correct": correct}
        if self.pair is not None:
            pair = projected or self.project(torch.cat([view[part] for view in self.pair])).chunk(2)
            named = zip(("plain_correct", "imagined_correct"), pair, strict=True)
            sums |= {name: count_hits(view, targets) for name, view in named}
        return sums, list(zip(debiased.values(), to_logits, strict=True))

    def _debiased(self, logits: dict[str, Tensor]) -> dict[str, Tensor]:
        if "imagined" not in logits:  # there is none, or it was subtracted from the states
            return logits
        # As in d2e_loss: differences are taken in float32 at least.
        imagined = at_least_float32(logits["imagined"])
        return {
            name: debias(at_least_float32(view), imagined, self.alpha)
            for name, view in logits.items()
            if name != "imagined"
        }


def _loss_and_gradients(
    u: Tensor,
    v: Tensor | None,
    targets: Tensor,
    kl_weight: float,
    kl_direction: KLDirection,
    token_weights: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Debiased logits u (and v, refined) → sums of ce, kl and correct tokens, and the gradients of ce + λ·kl.

    With p = softmax u, q = softmax v, y one-hot, d = log p − log q, for KL(p ‖ q) of a token K = Σ p·d:
    ∂u = p − y + λ·p·(d − K), ∂v = λ·(q − p); for KL(q ‖ p), K = −Σ q·d: ∂u = p − y + λ·(p − q), ∂v = λ·q·(−d − K).
    A token's weight multiplies all of them.
    """
    correct = count_hits(u, targets)
    log_p = F.log_softmax(at_least_float32(u), dim=-1)
    ce = weighted_sum(F.nll_loss(log_p, targets, reduction="none"), token_weights)
    if v is None:
        return ce, torch.zeros_like(ce), correct, _times(_minus_one_at(targets, log_p.exp_()), token_weights)
    log_q = F.log_softmax(at_least_float32(v), dim=-1)
    forwards = kl_direction == "original_refined"
    each, difference, p, q = _divergence(log_p, log_q, forwards)
    if forwards:
        to_u = difference.sub_(each).mul_(p).mul_(kl_weight).add_(p)
        to_v = q.sub_(p).mul_(kl_weight)
    else:
        to_v = difference.add_(each).mul_(q).mul_(-kl_weight)
        to_u = p.mul_(1 + kl_weight).sub_(q, alpha=kl_weight)
    kl = weighted_sum(each[:, 0], token_weights)
    return ce, kl, correct, _times(_minus_one_at(targets, to_u), token_weights), _times(to_v, token_weights)


def weighted_sum(values: Tensor, weights: Tensor | None) -> Tensor:
    """() the sum of the values (N,), each as often as its weight says."""
    return values.sum() if weights is None else (values * weights.to(values.dtype)).sum()


def _times(gradient: Tensor, weights: Tensor | None) -> Tensor:
    return gradient if weights is None else gradient.mul_(weights.to(gradient.dtype)[:, None])


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


def count_hits(logits: Tensor, targets: Tensor) -> Tensor:
    """() how many rows have their largest logit at the target."""
    return (logits.argmax(dim=-1) == targets).sum()


def _check_shapes(original: Tensor, imagined: Tensor | None, refined: Tensor | None) -> None:
    for name, view in (("imagined", imagined), ("refined", refined)):
        if view is not None and view.shape != original.shape:
            raise ValueError(f"{name}: shape {tuple(view.shape)}; expected that of original, {tuple(original.shape)}")
