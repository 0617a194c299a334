"""The decoders: one short function each, from the logits of both views to the scores of the next token.

They push the distribution with context away from the one without: `z_original + weight · (z_original − z_imagined)`.
The weight is fixed (d2e, cad), or differs from step to step (adacad). Decoding draws from `softmax(scores)`; greedy
decoding takes the largest score.

To add one, write a function here, list it in `FUNCTIONS`, and add its options to `DECODERS` of
`d2e_sft/config/decoding.py`. A custom function with the same arguments is named as `module:function` instead;
`examples/decoders.py` has some.

Legend: P pairs of rows, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from d2e_sft.config.decoding import DECODERS, DecodingConfig, parse_decoder
from d2e_sft.config.functions import load_function
from d2e_sft.util.errors import UserError

Options = Mapping[str, Any]
# (original (…, V), imagined (…, V), options) → scores (…, V)
Scores = Callable[[Tensor, Tensor, Options], Tensor]


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
        """The scores (P, V) of the next token; in float32 or better.

        `original` and `imagined` are logits (P, V), or hidden states for a linear decoder; `alpha` (P, 1) is each
        pair's ratio, for `d2e`. Raises UserError if a custom function failed, or did not return scores of this shape.
        """
        if self.name in FUNCTIONS:
            options = self.options if alpha is None or self.name != "d2e" else {"alpha": alpha}
            return self.scores(original, imagined, options)
        try:
            scores = self.scores(original, imagined, self.options)
        except Exception as error:  # a custom function may raise anything
            raise UserError(
                f"decoder {self.name}: failed on logits of shape {tuple(original.shape)} with the options "
                f"{dict(self.options)} ({type(error).__name__}: {error})"
            ) from error
        if not isinstance(scores, Tensor) or scores.shape != original.shape or scores.isnan().any():
            got = f"shape {tuple(scores.shape)}" if isinstance(scores, Tensor) else type(scores).__name__
            raise UserError(
                f"decoder {self.name}: returned {got}; expected a tensor of shape {tuple(original.shape)}, like its "
                "two arguments, without NaN"
            )
        return scores.to(original.dtype)


def decoder_of(decoding: DecodingConfig) -> ChosenDecoder:
    """The decoder of a configuration, with its options; UserError if a custom function cannot be imported."""
    chosen = named_decoder(decoding.decoder)
    return replace(chosen, options={"alpha": decoding.alpha}) if chosen.name == "d2e" else chosen


@cache
def named_decoder(text: str) -> ChosenDecoder:
    """The decoder of `NAME:KEY=VALUE,…`; `d2e` has the default α if none is given.

    Raises UserError for an unknown decoder or option, or a custom function that cannot be imported.
    """
    name, options = parse_decoder(text)
    if name not in FUNCTIONS:
        return ChosenDecoder(name, load_function(name, "decoder"), options)
    return ChosenDecoder(name, FUNCTIONS[name], {**DECODERS[name], **options})
