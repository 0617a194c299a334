"""From the last states of the rows to the next token of each pair.

Legend: B pairs, I imagined rows (a pair that is decoded plainly has none), H hidden size, V vocabulary.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from d2e_sft.config.decoding import DecodingConfig


@dataclass(frozen=True)
class RowStates:
    """What the rows' last tokens lead to: hidden states, or logits where the head's map is not linear or not known.

    Attributes:
        original: (B, H or V).
        imagined: (I, H or V).
        partner: (I,) the pair that each imagined row belongs to.
    """

    original: Tensor
    imagined: Tensor
    partner: Tensor


@dataclass(frozen=True)
class Head:
    """From states to logits; `linear` heads are applied once to the subtracted states, the others to every row."""

    project: Callable[[Tensor], Tensor]
    linear: bool


class TokenChoice:
    """Chooses each pair's next token; keeps the random numbers of each request.

    Args:
        decoding: plausibility, temperature, `top_k`, `top_p` and seed are read.
        names: of the requests; a request's draws depend on its name and the seed alone.
    """

    def __init__(self, decoding: DecodingConfig, names: Sequence[int]) -> None:
        self.plausibility = decoding.plausibility
        self.greedy = decoding.temperature == 0
        self.warpers = LogitsProcessorList()
        if not self.greedy:
            self.warpers.append(TemperatureLogitsWarper(float(decoding.temperature)))
            if decoding.top_k:
                self.warpers.append(TopKLogitsWarper(decoding.top_k))
            if decoding.top_p < 1:
                self.warpers.append(TopPLogitsWarper(decoding.top_p))
        self.draws = [random.Random(f"{decoding.seed}/{name}") for name in names]

    def __call__(self, states: RowStates, head: Head, alpha: Tensor, requests: Sequence[int]) -> Tensor:
        """(B,) tokens.

        Args:
            alpha: (I,) of each imagined row.
            requests: (B,) whose turn each pair is.
        """
        debiased, original = debiased_logits(states, head, alpha, with_original=self.plausibility > 0)
        if self.plausibility > 0:
            floor = original.amax(dim=-1, keepdim=True) + math.log(self.plausibility)
            debiased = debiased.masked_fill(original < floor, -torch.inf)
        if self.greedy:
            return debiased.argmax(dim=-1)
        warped: Tensor = self.warpers(None, debiased)  # they look at no earlier token
        return self._drawn(warped.double().softmax(dim=-1), requests)

    def _drawn(self, probabilities: Tensor, requests: Sequence[int]) -> Tensor:
        at = torch.tensor([[self.draws[request].random()] for request in requests], dtype=torch.float64)
        cumulative = probabilities.cumsum(dim=-1)
        # Rounding may leave the sum short of 1, and a token of probability 0 must not be drawn for it.
        return torch.searchsorted(cumulative, at.to(cumulative.device) * cumulative[:, -1:], right=True).squeeze(1)


def debiased_logits(states: RowStates, head: Head, alpha: Tensor, *, with_original: bool) -> tuple[Tensor, Tensor]:
    """`z_original − α · z_imagined` of each pair, float32 (B, V), and the original's logits.

    Without `with_original` the second result is only what came about: it may be the first.
    """
    pairs = len(states.original)
    if not len(states.partner):
        logits = head.project(states.original).float()
        return logits, logits
    if not head.linear:
        original = head.project(states.original).float()
        return _subtract(original, head.project(states.imagined).float(), states.partner, alpha), original
    dtype = states.original.dtype
    debiased = _subtract(states.original.float(), states.imagined.float(), states.partner, alpha).to(dtype)
    rows = torch.cat([debiased, states.original]) if with_original else debiased
    logits = head.project(rows).float()
    return logits[:pairs], logits[-pairs:]


def _subtract(original: Tensor, imagined: Tensor, partner: Tensor, alpha: Tensor) -> Tensor:
    return original.index_add(0, partner, -alpha[:, None] * imagined)
