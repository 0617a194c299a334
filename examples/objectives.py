"""Objectives of your own: functions from the logits of a sample's views to loss terms.

In the folder above, name one as `d2e train RECIPE d2e.objective=examples.objectives:product`. A function gets the
views in `d2e.own_views` (the original and the imagined one by default). The loss of a token is the sum of its terms,
with `kl` times `d2e.kl_weight`. With `d2e.debias=true` the model is decoded with α. A function's options are keyword
arguments after the first four, and numbers: `d2e.objective=examples.objectives:contrast:weight=0.5`.

Legend: n answer tokens, V vocabulary; z_o, z_im, z_r are the logits (n, V) of the original, imagined and refined view,
CE(z) = −log softmax(z) at the targets, and λ is `d2e.kl_weight`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Logits = Mapping[str, Tensor]
Terms = dict[str, Tensor]


def product(logits: Logits, targets: Tensor, content: Tensor, options: Any) -> Terms:
    """CE(z_o + log p_im), p_im without gradient: a product of experts, decoded plainly (Clark et al., 2019).

    The original view need not learn what the habit already explains. The form of the response ("The answer is:", where
    `content` is False) is trained without the product: the habit explains it fully, so the model would unlearn it.
    `d2e.view_gradients=original` saves the backward of the imagined view.
    """
    habit = F.log_softmax(logits["imagined"].detach(), dim=-1)
    return {"ce": cross_entropy(logits["original"] + habit * content[:, None], targets)}


def honest(logits: Logits, targets: Tensor, content: Tensor, options: Any) -> Terms:
    """CE(z_o) + CE(z_im): the imagined view learns the habit, and only decoding subtracts it (`d2e.debias=true`).

    The question-only branch of CF-VQA is trained and subtracted in the same way (Niu et al., CVPR 2021).
    """
    return {
        "ce": cross_entropy(logits["original"], targets),
        "imagined_ce": cross_entropy(logits["imagined"], targets),
    }


def honest_teacher(logits: Logits, targets: Tensor, content: Tensor, options: Any) -> Terms:
    """`honest` + CE(z_r) + λ · KL(z_r ‖ z_o), z_r without gradient in the divergence.

    Takes all views: `d2e.own_views=[original,imagined,refined] d2e.debias=true`.
    """
    return {
        **honest(logits, targets, content, options),
        "refined_ce": cross_entropy(logits["refined"], targets),
        "kl": divergence(logits["refined"].detach(), logits["original"]),
    }


def weighted(logits: Logits, targets: Tensor, content: Tensor, options: Any) -> Terms:
    """The objective `d2e` with α only where the two views choose different tokens.

    Takes all views: `d2e.own_views=[original,imagined,refined] d2e.debias=true`.
    """
    agree = logits["original"].argmax(dim=-1) == logits["imagined"].argmax(dim=-1)
    habit = options.alpha * torch.where(agree[:, None], 0.0, logits["imagined"])
    u, v = logits["original"] - habit, logits["refined"] - habit
    return {"ce": cross_entropy(u, targets), "kl": divergence(u, v)}


def contrast(logits: Logits, targets: Tensor, content: Tensor, options: Any, *, weight: float = 0.5) -> Terms:
    """CE((1 + w)·z_o − w·z_im), w = `weight`: trained on the scores of the decoder `examples.decoders:contrast`.

    Training and decoding with the same weight see the same scores, as with `d2e.debias=true` and the decoder `d2e`.
    """
    return {"ce": cross_entropy((1 + weight) * logits["original"] - weight * logits["imagined"], targets)}


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """−log softmax(logits) at the targets, (n,)."""
    return F.cross_entropy(logits, targets, reduction="none")


def divergence(first: Tensor, second: Tensor) -> Tensor:
    """KL(softmax(first) ‖ softmax(second)) of each token, (n,)."""
    log_p, log_q = F.log_softmax(first, dim=-1), F.log_softmax(second, dim=-1)
    return (log_p.exp() * (log_p - log_q)).sum(dim=-1)
