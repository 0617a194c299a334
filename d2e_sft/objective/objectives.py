"""The objectives: functions from the logits of the views to loss terms.

An objective is a function of

- `logits`: view → (n, V), float32 or float64, at the positions that predict the answer tokens
- `targets`: (n,) the answer tokens
- `content`: (n,) bool, False for tokens of the response form ("The answer is:", the end of the turn)
- `options`: section `d2e` of the recipe

and returns its terms by name, (n,) each, in nats. The loss of a token is the sum of its terms, with weight `kl_weight`
for `kl` and `imagined_weight` for `imagined_ce`. A function of your own has the same signature (see `own`).

Legend: z_o, z_im, z_r logits of the original, imagined and refined view, p their softmax, y the answer token,
CE(z) = −log softmax(z)[y], λ `kl_weight`, μ `imagined_weight`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from d2e_sft.config.objectives import View
from d2e_sft.config.recipe import D2ESection
from d2e_sft.model.forward import jensen_shannon

Logits = Mapping[View, Tensor]
ObjectiveFunction = Callable[[Logits, Tensor, Tensor, D2ESection], dict[str, Tensor]]


def debias(original: Tensor, imagined: Tensor | None, alpha: float | Tensor) -> Tensor:
    """Debiased logits `original − α · imagined` (PIPER paper, equations 6 and 7); same shape as `original`."""
    return original if imagined is None else original - alpha * imagined


def d2e(logits: Logits, targets: Tensor, content: Tensor, options: D2ESection) -> dict[str, Tensor]:
    """CE(u) + λ · KL(u ‖ v) with u = z_o − α·z_im, v = z_r − α·z_im (PIPER paper, equations 3 to 8).

    Without a refined view `kl` is 0; with the original view only, this is plain supervised fine-tuning.
    """
    return _debiased_terms(logits, targets, options, options.effective_alpha)


def product(logits: Logits, targets: Tensor, content: Tensor, options: D2ESection) -> dict[str, Tensor]:
    """CE(z_o + w · log p_im, detached): a product of experts, decoded with the first expert only.

    The original view need not learn what the habit already explains. Tokens of the response form are trained without
    the product: the habit explains them fully, so the model would unlearn the form. w is `product_weight`. Clark et
    al., EMNLP 2019 (arXiv 1909.03683). `imagined_weight` also trains the second expert, by a cross entropy of its
    own, as in Karimi Mahabadi et al., ACL 2020 (arXiv 1909.06321).
    """
    habit = options.product_weight * F.log_softmax(logits["imagined"].detach(), dim=-1)
    experts = logits["original"] + torch.where(content[:, None], habit, torch.zeros_like(habit))
    terms = {"ce": cross_entropy(experts, targets)}
    if options.imagined_weight > 0:
        terms["imagined_ce"] = cross_entropy(logits["imagined"], targets)
    return terms


def reweight(logits: Logits, targets: Tensor, content: Tensor, options: D2ESection) -> dict[str, Tensor]:
    """CE(z_o), each answer weighted by 1 − p_im(answer): it counts the less, the better the habit knows it.

    The weight belongs to a whole answer, so `AnswerTokens.reweighted` computes it. Clark et al., EMNLP 2019 (arXiv
    1909.03683).
    """
    return {"ce": cross_entropy(logits["original"], targets)}


def honest(logits: Logits, targets: Tensor, content: Tensor, options: D2ESection) -> dict[str, Tensor]:
    """CE(z_o) + μ · CE(z_im): the imagined view learns the habit, which is subtracted only in decoding.

    The question-only branch of CF-VQA is trained and subtracted in the same way (Niu et al., CVPR 2021).
    """
    return {
        "ce": cross_entropy(logits["original"], targets),
        "imagined_ce": cross_entropy(logits["imagined"], targets),
    }


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


def honest_teacher(logits: Logits, targets: Tensor, content: Tensor, options: D2ESection) -> dict[str, Tensor]:
    """CE(z_o) + CE(z_r) + λ · KL(z_r, detached ‖ z_o) + μ · CE(z_im): `teacher` and `honest` together."""
    return {
        **teacher(logits, targets, content, options),
        "imagined_ce": cross_entropy(logits["imagined"], targets),
    }


def weighted(logits: Logits, targets: Tensor, content: Tensor, options: D2ESection) -> dict[str, Tensor]:
    """`d2e` with α·w instead of α; w is computed per token, without gradient.

    `agreement`: w is 0 where z_o and z_im have the same argmax (as on the response form), else 1. `jsd`: w is the
    Jensen–Shannon divergence of p_o and p_im in bits, from 0 (equal) to 1, AdaCAD's weight in decoding (Wang et al.,
    NAACL 2025, arXiv 2409.07394).
    """
    if "imagined" not in logits:
        return d2e(logits, targets, content, options)
    with torch.no_grad():
        original, imagined = logits["original"], logits["imagined"]
        if options.alpha_weight == "agreement":
            weight = (original.argmax(dim=-1) != imagined.argmax(dim=-1)).to(original.dtype)
        else:
            weight = jensen_shannon(original, imagined) / math.log(2)
    return _debiased_terms(logits, targets, options, options.effective_alpha * weight[:, None])


def prefer(logits: Logits, targets: Tensor, content: Tensor, options: D2ESection) -> dict[str, Tensor]:
    """CE(z_o), the part of `prefer` that is a sum over tokens; `preference` adds the loss of pairs."""
    return {"ce": cross_entropy(logits["original"], targets)}


FUNCTIONS: dict[str, ObjectiveFunction] = {
    "sft": d2e,
    "d2e": d2e,
    "product": product,
    "reweight": reweight,
    "honest": honest,
    "teacher": teacher,
    "honest-teacher": honest_teacher,
    "weighted": weighted,
    "prefer": prefer,
}


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """−log softmax(logits) at the targets, (n,)."""
    return F.cross_entropy(logits, targets, reduction="none")


def divergence(first: Tensor, second: Tensor) -> Tensor:
    """KL(softmax(first) ‖ softmax(second)) per row, (n,)."""
    log_p, log_q = F.log_softmax(first, dim=-1), F.log_softmax(second, dim=-1)
    return (log_p.exp() * (log_p - log_q)).sum(dim=-1)


def _debiased(logits: Logits, alpha: float | Tensor) -> tuple[Tensor, Tensor | None]:
    imagined, refined = logits.get("imagined"), logits.get("refined")
    return debias(logits["original"], imagined, alpha), None if refined is None else debias(refined, imagined, alpha)


def _debiased_terms(logits: Logits, targets: Tensor, options: D2ESection, alpha: float | Tensor) -> dict[str, Tensor]:
    u, v = _debiased(logits, alpha)
    ce = cross_entropy(u, targets)
    if v is None:
        return {"ce": ce, "kl": torch.zeros_like(ce)}
    return {"ce": ce, "kl": divergence(u, v) if options.kl_direction == "original_refined" else divergence(v, u)}
