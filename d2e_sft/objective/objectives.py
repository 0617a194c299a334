"""The objectives: functions from the logits of the views to loss terms.

An objective is a function of

- `logits`: view → (n, V), float32 or float64, at the positions that predict the answer tokens
- `targets`: (n,) the answer tokens
- `content`: (n,) bool, False for tokens of the response form ("The answer is:", the end of the turn)
- `options`: section `d2e` of the recipe

and returns its terms by name, (n,) each, in nats. The loss of a token is the sum of its terms, `kl` times `kl_weight`.
A function of your own has the same signature (see `own`); `examples/objectives.py` has some.

Legend: z_o, z_im, z_r logits of the original, imagined and refined view, p their softmax, y the answer token,
CE(z) = −log softmax(z)[y], λ `kl_weight`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from d2e_sft.config.objectives import View
from d2e_sft.config.recipe import D2ESection

Logits = Mapping[View, Tensor]
ObjectiveFunction = Callable[[Logits, Tensor, Tensor, D2ESection], dict[str, Tensor]]


def debias(original: Tensor, imagined: Tensor | None, alpha: float | Tensor) -> Tensor:
    """Debiased logits `original − α · imagined` (PIPER paper, equations 6 and 7); same shape as `original`."""
    return original if imagined is None else original - alpha * imagined


def d2e(logits: Logits, targets: Tensor, content: Tensor, options: D2ESection) -> dict[str, Tensor]:
    """CE(u) + λ · KL(u ‖ v) with u = z_o − α·z_im, v = z_r − α·z_im (PIPER paper, equations 3 to 8).

    Without a refined view `kl` is 0; with the original view only, this is plain supervised fine-tuning.
    """
    u, v = _debiased(logits, options.effective_alpha)
    ce = cross_entropy(u, targets)
    if v is None:
        return {"ce": ce, "kl": torch.zeros_like(ce)}
    return {"ce": ce, "kl": divergence(u, v) if options.kl_direction == "original_refined" else divergence(v, u)}


def teacher(logits: Logits, targets: Tensor, content: Tensor, options: D2ESection) -> dict[str, Tensor]:
    """CE(u) + CE(v) + λ · KL(v, detached ‖ u), u and v the logits of the original and the refined view.

    The refined view learns only from the answers, so no divergence pulls it towards answers that need no context.
    It is context distillation (Snell et al., 2022, arXiv 2209.15189) with a teacher in training. With `debias`,
    u = z_o − α·z_im and v = z_r − α·z_im.
    """
    student, tutor = _debiased(logits, options.effective_alpha)
    assert tutor is not None
    return {
        "ce": cross_entropy(student, targets),
        "refined_ce": cross_entropy(tutor, targets),
        "kl": divergence(tutor.detach(), student),
    }


def prefer(logits: Logits, targets: Tensor, content: Tensor, options: D2ESection) -> dict[str, Tensor]:
    """CE(z_o), the part of `prefer` that is a sum over tokens; `preference` adds the loss of pairs."""
    return {"ce": cross_entropy(logits["original"], targets)}


FUNCTIONS: dict[str, ObjectiveFunction] = {
    "sft": d2e,
    "d2e": d2e,
    "teacher": teacher,
    "prefer": prefer,
}


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """−log softmax(logits) at the targets, (n,)."""
    return F.cross_entropy(logits, targets, reduction="none")


def divergence(first: Tensor, second: Tensor) -> Tensor:
    """KL(softmax(first) ‖ softmax(second)) per row, (n,)."""
    log_p, log_q = F.log_softmax(first, dim=-1), F.log_softmax(second, dim=-1)
    return (log_p.exp() * (log_p - log_q)).sum(dim=-1)


def _debiased(logits: Logits, alpha: float) -> tuple[Tensor, Tensor | None]:
    imagined, refined = logits.get("imagined"), logits.get("refined")
    return debias(logits["original"], imagined, alpha), None if refined is None else debias(refined, imagined, alpha)
