"""Sampling for a pair: one draw for both rows."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from d2e_sft.decoding.decoders import warpers

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

    temperature: Annotated[float, Field(gt=0)]
    seed: int
    top_k: Annotated[int, Field(ge=0)] = 0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0

    def perturb(self, logits: Tensor, position: int) -> None:
        """Add the noise for the token at index `position` to one row (V,), in place; its largest entry is the draw."""
        warped = warpers(self.temperature, self.top_k, self.top_p, self.min_p)(None, logits[None])[0]
        generator = torch.Generator(logits.device).manual_seed(_mixed(self.seed, position))
        noise = torch.empty_like(logits).exponential_(generator=generator)
        torch.sub(warped, noise.clamp_min_(torch.finfo(logits.dtype).tiny).log_(), out=logits)


def _mixed(seed: int, position: int) -> int:
    """Mix both into a 64-bit number (the finaliser of SplitMix64), so that neighbouring seeds share no draws."""
    value = (seed * 0x9E3779B97F4A7C15 + position * 0xD1B54A32D192ED03 + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return (value ^ (value >> 31)) >> 1
