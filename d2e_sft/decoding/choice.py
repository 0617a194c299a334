"""From the states of a batch's rows to the next token of each pair.

Legend: B pairs, I imagined rows (a pair that is decoded plainly has none), H hidden size, V vocabulary.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.decoding.decoders import ChosenDecoder, decoder_of

# Stands for a token whose scores contain NaN or infinity.
NO_TOKEN = -1


@dataclass(frozen=True)
class RowStates:
    """Hidden states that predict the next tokens; logits if the head is not linear or not known.

    Attributes:
        original: (B, H or V).
        imagined: (I, H or V).
        partner: (I,) the pair of each imagined row.
    """

    original: Tensor
    imagined: Tensor
    partner: Tensor


@dataclass(frozen=True)
class Head:
    """From states to logits; with a linear decoder, a `linear` head is applied once per pair, else once per row."""

    project: Callable[[Tensor], Tensor]
    linear: bool


class TokenChoice:
    """Chooses each pair's next token, with random draws that depend on the seed and the pair's index only.

    `decoding` gives decoder, plausibility and sampling.
    """

    def __init__(self, decoding: DecodingConfig) -> None:
        self.decoder = decoder_of(decoding)
        self.plausibility = decoding.plausibility
        self.greedy = decoding.temperature == 0
        if not self.greedy:
            self.warpers = warpers(float(decoding.temperature), decoding.top_k, decoding.top_p)
        self.seed = decoding.seed
        self.draws: dict[int, random.Random] = {}

    def __call__(self, states: RowStates, head: Head, alpha: Tensor, indices: Sequence[int]) -> Tensor:
        """Return tokens (B,), `NO_TOKEN` where the best score is NaN or infinite.

        `alpha` (I,) is the ratio of each imagined row for `d2e`, `indices` (B,) are the pairs'.
        """
        scores, original = decoded_scores(states, head, self.decoder, alpha, with_original=self.plausibility > 0)
        if self.plausibility > 0:
            floor = original.amax(dim=-1, keepdim=True) + math.log(self.plausibility)
            scores = scores.masked_fill(original < floor, -torch.inf)
        best, likeliest = scores.max(dim=-1)  # a NaN anywhere is the largest
        if self.greedy:
            return _checked(likeliest, best)
        warped: Tensor = self.warpers(None, scores)  # none of them uses earlier tokens
        cumulative = warped.double().softmax(dim=-1).cumsum(dim=-1)
        at = torch.tensor([[self._draw(index)] for index in indices], dtype=torch.float64)
        # Rounding may leave the sum below 1; a token of probability 0 must not be drawn because of it.
        drawn = torch.searchsorted(cumulative, at.to(cumulative.device) * cumulative[:, -1:], right=True).squeeze(1)
        return _checked(drawn, best)

    def _draw(self, index: int) -> float:
        if index not in self.draws:
            self.draws[index] = random.Random(f"{self.seed}/{index}")
        return self.draws[index].random()


def _checked(tokens: Tensor, best: Tensor) -> Tensor:
    return torch.where(best.abs() < torch.inf, tokens, NO_TOKEN)


@cache
def warpers(temperature: float, top_k: int, top_p: float, min_p: float = 0.0) -> LogitsProcessorList:
    """What turns scores into those that a token is drawn from; options at their neutral values are left out."""
    asked = ((MinPLogitsWarper, min_p, 0), (TopKLogitsWarper, top_k, 0), (TopPLogitsWarper, top_p, 1))
    restricting = [kind(value) for kind, value, neutral in asked if value != neutral]
    return LogitsProcessorList([TemperatureLogitsWarper(temperature), *restricting])


def decoded_scores(
    states: RowStates, head: Head, decoder: ChosenDecoder, alpha: Tensor, *, with_original: bool
) -> tuple[Tensor, Tensor]:
    """The decoder's scores of each pair, float32 (B, V), and the original's logits; plain pairs keep their logits.

    `alpha` (I,) is the ratio of each imagined row. Without `with_original` the second result is unspecified.
    """
    pairs = len(states.original)
    if not len(states.partner):
        logits = head.project(states.original).float()
        return logits, logits
    if not (head.linear and decoder.linear):
        # One projection of both, so that the head's weights are read once.
        logits = head.project(torch.cat([states.original, states.imagined])).float()
        original, imagined = logits[:pairs], logits[pairs:]
        return _combine(original, imagined, states.partner, decoder, alpha), original
    dtype = states.original.dtype
    combined = _combine(states.original.float(), states.imagined.float(), states.partner, decoder, alpha).to(dtype)
    rows = torch.cat([combined, states.original]) if with_original else combined
    logits = head.project(rows).float()
    return logits[:pairs], logits[-pairs:]


def _combine(original: Tensor, imagined: Tensor, partner: Tensor, decoder: ChosenDecoder, alpha: Tensor) -> Tensor:
    return original.index_copy(0, partner, decoder(original[partner], imagined, alpha[:, None]))
