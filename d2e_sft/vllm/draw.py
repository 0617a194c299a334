"""Sampling for a pair: one draw for both rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class Draw:
    """How a pair samples.

    Both rows must draw the same token, even after a resubmission. vLLM's own seeds do not guarantee this. A seed
    restarts with every submission, and a prompt that is read in chunks draws more often. So the draw adds noise to
    the logits (the Gumbel-max trick). The noise depends only on the seed and the token's index. vLLM then takes the
    largest logit, as for any greedy request.

    Attributes:
        seed: Equal seeds give equal draws, however the pair was scheduled.
        top_k: Number of most probable tokens to draw from; 0: all.
        top_p: Probability of the smallest set of tokens to draw from; 1: all.
        min_p: Least share of the best token's probability that a token needs; 0 allows all.
    """

    temperature: float
    seed: int
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(f"temperature: got {self.temperature!r}; expected a number above 0")
        if self.top_k < 0 or not 0 < self.top_p <= 1 or not 0 <= self.min_p <= 1:
            raise ValueError(
                f"top_k {self.top_k}, top_p {self.top_p}, min_p {self.min_p}: expected top_k from 0, "
                "top_p above 0 and at most 1, min_p from 0 to 1"
            )

    def perturb(self, logits: Tensor, position: int) -> None:
        """Add the noise for the token at index `position` to one row (V,), in place; its largest entry is the draw."""
        logits.div_(self.temperature)
        self._keep_probable(logits)
        generator = torch.Generator(logits.device).manual_seed(_mixed(self.seed, position))
        noise = torch.empty_like(logits).exponential_(generator=generator)
        logits.sub_(noise.clamp_min_(torch.finfo(logits.dtype).tiny).log_())

    def _keep_probable(self, logits: Tensor) -> None:
        if self.min_p > 0:
            probabilities = logits.softmax(-1)
            logits.masked_fill_(probabilities < self.min_p * probabilities.max(), float("-inf"))
        if 0 < self.top_k < logits.numel():
            logits.masked_fill_(logits < logits.topk(self.top_k).values[-1], float("-inf"))
        if self.top_p < 1:
            values, order = logits.sort(descending=True)
            # A token is dropped if those before it already have the mass, so the first one stays.
            before = values.softmax(-1).cumsum(-1).roll(1)
            before[0] = 0.0
            logits[order[before >= self.top_p]] = float("-inf")


def _mixed(seed: int, position: int) -> int:
    """Mix both into a 64-bit number (the finaliser of SplitMix64), so that neighbouring seeds share no draws."""
    value = (seed * 0x9E3779B97F4A7C15 + position * 0xD1B54A32D192ED03 + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return (value ^ (value >> 31)) >> 1
