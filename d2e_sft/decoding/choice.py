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
from d2e_sft.decoding.decoders import ChosenDecoder, decoder_of


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
    """From states to logits; a `linear` head is applied once a pair if the decoder is linear, too, else once a row."""

    project: Callable[[Tensor], Tensor]
    linear: bool


class TokenChoice:
    """Chooses each pair's next token; keeps the random numbers of each request.

    Args:
        decoding: the decoder, plausibility, temperature, `top_k`, `top_p` and seed are read.
        names: of the requests; a request's draws depend on its name and the seed alone.
    """

    def __init__(self, decoding: DecodingConfig, names: Sequence[int]) -> None:
        self.decoder = decoder_of(decoding)
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
            alpha: (I,) of each imagined row; read by the decoder `d2e`.
            requests: (B,) whose turn each pair is.
        """
        scores, original = decoded_scores(states, head, self.decoder, alpha, with_original=self.plausibility > 0)
        if self.plausibility > 0:
            floor = original.amax(dim=-1, keepdim=True) + math.log(self.plausibility)
            scores = scores.masked_fill(original < floor, -torch.inf)
        if self.greedy:
            return scores.argmax(dim=-1)
        warped: Tensor = self.warpers(None, scores)  # they look at no earlier token
        return self._drawn(warped.double().softmax(dim=-1), requests)

    def _drawn(self, probabilities: Tensor, requests: Sequence[int]) -> Tensor:
        at = torch.tensor([[self.draws[request].random()] for request in requests], dtype=torch.float64)
        cumulative = probabilities.cumsum(dim=-1)
        # Rounding may leave the sum short of 1, and a token of probability 0 must not be drawn for it.
        return torch.searchsorted(cumulative, at.to(cumulative.device) * cumulative[:, -1:], right=True).squeeze(1)


def decoded_scores(
    states: RowStates, head: Head, decoder: ChosenDecoder, alpha: Tensor, *, with_original: bool
) -> tuple[Tensor, Tensor]:
    """The decoder's scores of each pair, float32 (B, V), and the original's logits; a pair of one row keeps these.

    Args:
        alpha: (I,) of each imagined row.
        with_original: the second result is needed; else it is only what came about, which may be the first.
    """
    pairs = len(states.original)
    if not len(states.partner):
        logits = head.project(states.original).float()
        return logits, logits
    if not (head.linear and decoder.linear):
        logits = head.project(torch.cat([states.original, states.imagined])).float()  # its weights are read once
        original, imagined = logits[:pairs], logits[pairs:]
        return _combine(original, imagined, states.partner, decoder, alpha), original
    dtype = states.original.dtype
    combined = _combine(states.original.float(), states.imagined.float(), states.partner, decoder, alpha).to(dtype)
    rows = torch.cat([combined, states.original]) if with_original else combined
    logits = head.project(rows).float()
    return logits[:pairs], logits[-pairs:]


def _combine(original: Tensor, imagined: Tensor, partner: Tensor, decoder: ChosenDecoder, alpha: Tensor) -> Tensor:
    return original.index_copy(0, partner, decoder(original[partner], imagined, alpha[:, None]))
