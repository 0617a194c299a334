"""The D²E objective, reference form: torch only, one row a token.

Legend: N answer tokens, V vocabulary. Everything is summed over tokens; the caller divides by the number of
answer tokens of the global batch, which only it knows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

KLDirection = Literal["original_refined", "refined_original"]


@dataclass(frozen=True)
class D2ELoss:
    """Sums over answer tokens; `loss` = `ce` + kl_weight · `kl` carries gradient, the others do not."""

    loss: Tensor  # ()
    ce: Tensor  # ()
    kl: Tensor  # ()
    correct: Tensor  # (), tokens whose debiased argmax is the answer token


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
    for name, view in (("imagined", imagined), ("refined", refined)):
        if view is not None and view.shape != original.shape:
            raise ValueError(f"{name}: shape {tuple(view.shape)}; expected that of original, {tuple(original.shape)}")
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
    correct = (debiased.argmax(dim=-1) == targets).sum()
    return D2ELoss(loss=loss, ce=ce.detach(), kl=kl.detach(), correct=correct)


def _at_least_float32(view: Tensor) -> Tensor:
    return view if view.dtype in (torch.float32, torch.float64) else view.float()
