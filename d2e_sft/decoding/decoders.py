"""The decoders: one short function each, from the logits of both views to the scores of the next token; its choice.

They push the distribution with context away from the one without: `z_original + weight · (z_original − z_imagined)`.
The weight is fixed (d2e, cad), or differs from step to step (adacad). Decoding draws from `softmax(scores)`; greedy
decoding takes the largest score.

To add one, write a function here, list it in `FUNCTIONS`, and add its options to `DECODERS` of
`d2e_sft/config/decoding.py`. A custom function with the same arguments is named as `module:function` instead;
`examples/decoders.py` has some.

Legend: B pairs, I imagined rows (a pair that is decoded plainly has none), P pairs of rows, H hidden size,
V vocabulary.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from d2e_sft.config.decoding import DECODERS, DecodingConfig, parse_decoder
from d2e_sft.config.functions import load_with_options
from d2e_sft.util.errors import UserError

NO_TOKEN = -1  # stands for a token whose scores contain NaN or infinity
Options = Mapping[str, Any]
# (original (…, V), imagined (…, V), options) → scores (…, V); a custom function has its options already
Scores = Callable[..., Tensor]


def plain(original: Tensor, imagined: Tensor, options: Options) -> Tensor:
    """The logits with context, unchanged."""
    return original


def d2e(original: Tensor, imagined: Tensor, options: Options) -> Tensor:
    """D²E (PIPER paper, equation 6): `z_o − α·z_im`. For α < 1, greedily the same as CAD with weight α/(1 − α)."""
    return original - options["alpha"] * imagined


def cad(original: Tensor, imagined: Tensor, options: Options) -> Tensor:
    """Context-aware decoding (Shi et al., NAACL 2024, arXiv 2305.14739): `(1 + a)·z_o − a·z_im`.

    Greedily the same as D²E with α = a/(1 + a).
    """
    return original + options["weight"] * (original - imagined)


def jensen_shannon(first: Tensor, second: Tensor) -> Tensor:
    """½ KL(p ‖ m) + ½ KL(q ‖ m), m = (p + q) / 2, p and q the softmax of each row; (n,) up to log 2."""
    log_p, log_q = F.log_softmax(first, dim=-1), F.log_softmax(second, dim=-1)
    log_m = torch.logaddexp(log_p, log_q) - math.log(2)
    return ((log_p.exp() * (log_p - log_m) + log_q.exp() * (log_q - log_m)) / 2).sum(dim=-1)


def adacad(original: Tensor, imagined: Tensor, options: Options) -> Tensor:
    """AdaCAD (Wang et al., NAACL 2025, arXiv 2409.07394): CAD weighted by each step's Jensen–Shannon divergence.

    The weight is at least `floor`. As the divergence is in nats, it is at most ln 2 unless the floor is higher.
    """
    weight = jensen_shannon(original, imagined).clamp(min=options["floor"])
    return original + weight[..., None] * (original - imagined)


FUNCTIONS: Mapping[str, Scores] = {scores.__name__: scores for scores in (plain, d2e, cad, adacad)}
# Fixed combinations of both logits, which can be applied to hidden states before a linear head.
LINEAR = frozenset({"plain", "d2e", "cad"})


@dataclass(frozen=True)
class ChosenDecoder:
    """A decoder with its options; `name` is one of `FUNCTIONS`, or `module:function`."""

    name: str
    scores: Scores
    options: Options

    @property
    def linear(self) -> bool:
        """Whether it is in `LINEAR`."""
        return self.name in LINEAR

    def __call__(self, original: Tensor, imagined: Tensor, alpha: Tensor | None = None) -> Tensor:
        """Return the scores (P, V) of the next token, in float32 or better.

        `original` and `imagined` are logits (P, V), or hidden states for a linear decoder; `alpha` (P, 1) is each
        pair's ratio, for `d2e`. Raises UserError if a custom function failed, or did not return scores of this shape.
        """
        if self.name in FUNCTIONS:
            options = self.options if alpha is None or self.name != "d2e" else {"alpha": alpha}
            return self.scores(original, imagined, options)
        try:
            scores = self.scores(original, imagined)
        except Exception as error:  # a custom function may raise anything
            raise UserError(
                f"decoder {self.name}: failed on logits of shape {tuple(original.shape)} with the options "
                f"{dict(self.options)} ({type(error).__name__}: {error})"
            ) from error
        if not isinstance(scores, Tensor) or scores.shape != original.shape or scores.isnan().any():
            form = f"shape {tuple(scores.shape)}" if isinstance(scores, Tensor) else type(scores).__name__
            raise UserError(
                f"decoder {self.name}: returned {form}; expected a tensor of shape {tuple(original.shape)}, like its "
                "two arguments, without NaN"
            )
        return scores.to(original.dtype)


def decoder_of(decoding: DecodingConfig) -> ChosenDecoder:
    """The decoder of a configuration, with its options; UserError if a custom function cannot be imported."""
    chosen = named_decoder(decoding.decoder)
    return replace(chosen, options={"alpha": decoding.alpha}) if chosen.name == "d2e" else chosen


@cache
def named_decoder(text: str) -> ChosenDecoder:
    """Return the decoder of `NAME:KEY=VALUE,…`; `d2e` has the default α if none is given."""
    name, options = parse_decoder(text)
    if name not in FUNCTIONS:
        return ChosenDecoder(name, load_with_options("decoder", text, ("original", "imagined")), options)
    return ChosenDecoder(name, FUNCTIONS[name], {**DECODERS[name], **options})


@dataclass(frozen=True)
class RowStates:
    """Hidden states that predict the next tokens; logits if the head is not linear or not known.

    Attributes:
        original, imagined: (B, H or V) and (I, H or V).
        partner: (I,) the pair of each imagined row.
        project: From states to logits; a `linear` one is applied once per pair if the decoder is linear, too.
    """

    original: Tensor
    imagined: Tensor
    partner: Tensor
    project: Callable[[Tensor], Tensor] = lambda logits: logits
    linear: bool = False


class TokenChoice:
    """Chooses each pair's next token, with random draws that depend on the seed and the pair's place only."""

    def __init__(self, decoding: DecodingConfig) -> None:
        self.decoder = decoder_of(decoding)
        self.plausibility = decoding.plausibility
        self.greedy = decoding.temperature == 0
        if not self.greedy:
            self.warpers = warpers(float(decoding.temperature), decoding.top_k, decoding.top_p)
        self.seed = decoding.seed
        self.draws: dict[int, random.Random] = {}

    def __call__(self, states: RowStates, alpha: Tensor, places: Sequence[int]) -> Tensor:
        """Return tokens (B,), `NO_TOKEN` where the best score is NaN or infinite.

        `alpha` (I,) is the ratio of each imagined row for `d2e`, `places` (B,) are the pairs'.
        """
        scores, original = decoded_scores(states, self.decoder, alpha, with_original=self.plausibility > 0)
        if self.plausibility > 0:
            floor = original.amax(dim=-1, keepdim=True) + math.log(self.plausibility)
            scores = scores.masked_fill(original < floor, -torch.inf)
        best, likeliest = scores.max(dim=-1)  # a NaN anywhere is the largest
        if self.greedy:
            return torch.where(best.abs() < torch.inf, likeliest, NO_TOKEN)
        warped: Tensor = self.warpers(None, scores)  # none of them uses earlier tokens
        cumulative = warped.double().softmax(dim=-1).cumsum(dim=-1)
        u = torch.tensor([[self._draw(place)] for place in places], dtype=torch.float64)
        # Rounding may leave the sum below 1; a token of probability 0 must not be drawn because of it.
        drawn = torch.searchsorted(cumulative, u.to(cumulative.device) * cumulative[:, -1:], right=True).squeeze(1)
        return torch.where(best.abs() < torch.inf, drawn, NO_TOKEN)

    def _draw(self, place: int) -> float:
        if place not in self.draws:
            self.draws[place] = random.Random(f"{self.seed}/{place}")
        return self.draws[place].random()


@cache
def warpers(temperature: float, top_k: int, top_p: float, min_p: float = 0.0) -> LogitsProcessorList:
    """What turns scores into those that a token is drawn from; options at their neutral values are left out."""
    options = ((MinPLogitsWarper, min_p, 0), (TopKLogitsWarper, top_k, 0), (TopPLogitsWarper, top_p, 1))
    restricting = [kind(value) for kind, value, neutral in options if value != neutral]
    return LogitsProcessorList([TemperatureLogitsWarper(temperature), *restricting])


def decoded_scores(
    states: RowStates, decoder: ChosenDecoder, alpha: Tensor, *, with_original: bool
) -> tuple[Tensor, Tensor]:
    """Return the scores of each pair, float32 (B, V), and the original's logits; plain pairs keep their logits.

    `alpha` (I,) is the ratio of each imagined row. Without `with_original` the second result is unspecified.
    """
    pairs = len(states.original)
    if not len(states.partner):
        logits = states.project(states.original).float()
        return logits, logits
    if not (states.linear and decoder.linear):
        # One projection of both, so that the head's weights are read once.
        logits = states.project(torch.cat([states.original, states.imagined])).float()
        original, imagined = logits[:pairs], logits[pairs:]
        return _combine(original, imagined, states.partner, decoder, alpha), original
    dtype = states.original.dtype
    combined = _combine(states.original.float(), states.imagined.float(), states.partner, decoder, alpha).to(dtype)
    rows = torch.cat([combined, states.original]) if with_original else combined
    logits = states.project(rows).float()
    return logits[:pairs], logits[-pairs:]


def _combine(original: Tensor, imagined: Tensor, partner: Tensor, decoder: ChosenDecoder, alpha: Tensor) -> Tensor:
    return original.index_copy(0, partner, decoder(original[partner], imagined, alpha[:, None]))
