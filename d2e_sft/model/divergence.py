"""The divergence of two next-token distributions."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def jensen_shannon(first: Tensor, second: Tensor) -> Tensor:
    """½ KL(p ‖ m) + ½ KL(q ‖ m) with m = (p + q) / 2, p and q the softmax of each row; (n,) from 0 to log 2."""
    log_p, log_q = F.log_softmax(first, dim=-1), F.log_softmax(second, dim=-1)
    log_m = torch.logaddexp(log_p, log_q) - math.log(2)
    return ((log_p.exp() * (log_p - log_m) + log_q.exp() * (log_q - log_m)) / 2).sum(dim=-1)
