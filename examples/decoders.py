"""Decoders of your own: functions from the logits of both prompts to the scores of the next token.

In the folder above, name one as `d2e eval MODEL --decoder examples.decoders:coiecd:ratio=2`. Options after the name
are numbers, the function's keyword arguments. Decoding draws from softmax(scores), or takes the largest score.

Legend: z_o, z_im are the logits (…, V) with and without the context, p_o, p_im their softmax.
"""

from __future__ import annotations

import math

from torch import Tensor


def coiecd(original: Tensor, imagined: Tensor, *, ratio: float = 4.0, weight: float = 1.0) -> Tensor:
    """Contrast only where the distribution with the context is open (COIECD: Yuan et al., 2024, arXiv 2402.11893).

    As in its released code: log p_o + a·(log p_o − log p_im) for tokens with more than 1/`ratio` of the largest
    probability, unless there is only one, and for those with less than `ratio` times the smallest. The others get
    log p_im + a·(log p_o − log p_im). With a = `weight` = 1 they keep p_o, and a step with one clear winner is plain.
    """
    log_p, log_q = original.log_softmax(-1), imagined.log_softmax(-1)
    margin = math.log(ratio)
    likely = log_p > log_p.amax(-1, keepdim=True) - margin
    unlikely = log_p < log_p.amin(-1, keepdim=True) + margin
    is_open = likely.sum(-1, keepdim=True) > 1
    return log_p.where(likely & is_open | unlikely, log_q) + weight * (log_p - log_q)


def cocoa(original: Tensor, imagined: Tensor, *, share: float = 0.5, weight: float = 1.0) -> Tensor:
    """s·z_o + (1 − s)·z_im + a·(z_o − z_im) (CoCoA: Khandelwal et al., 2025, arXiv 2508.17670).

    This is the core of its released code, which fixes s = `share` = 0.5 and a = `weight` = 1. Greedily these are CAD
    with weight 0.5.
    """
    return share * original + (1 - share) * imagined + weight * (original - imagined)


def contrast(original: Tensor, imagined: Tensor, *, weight: float = 0.5) -> Tensor:
    """(1 + w)·z_o − w·z_im, w = `weight` = 0.5: what the objective `examples.objectives:contrast` trains on."""
    return (1 + weight) * original - weight * imagined
