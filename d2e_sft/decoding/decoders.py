"""The decoders: one short function each, from the logits of both views to the scores of the next token.

All but grd push the distribution with context away from the one without: `z_original + weight · (z_original −
z_imagined)`. The weight is fixed (d2e, cad, cocoa), or differs from step to step (adacad) or from token to token
(coiecd). Decoding draws from `softmax(scores)`; greedy decoding takes the largest score.

To add one, write a function here, list it in `FUNCTIONS`, and add its options to `DECODERS` of
`d2e_sft/config/decoding.py`. A custom function with the same arguments is named as `module:function` instead.

Legend: P pairs of rows, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from d2e_sft.config.decoding import DECODERS, DecodingConfig, parse_decoder
from d2e_sft.config.functions import load_function
from d2e_sft.model.forward import jensen_shannon
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


def adacad(original: Tensor, imagined: Tensor, options: Options) -> Tensor:
    """AdaCAD (Wang et al., NAACL 2025, arXiv 2409.07394): CAD weighted by each step's Jensen–Shannon divergence.

    The weight is at least `floor`. As the divergence is in nats, it is at most ln 2 unless the floor is higher.
    """
    weight = jensen_shannon(original, imagined).clamp(min=options["floor"])
    return original + weight[..., None] * (original - imagined)


def coiecd(original: Tensor, imagined: Tensor, options: Options) -> Tensor:
    """COIECD (Yuan et al., ACL Findings 2024, arXiv 2402.11893): contrast where the distribution with context is open.

    As in its released code:
    `log p_o + a·(log p_o − log p_im)` for tokens with more than 1/`ratio` of the largest probability, unless there is
    only one, and for those with less than `ratio` times the smallest. The others get `log p_im + a·(log p_o −
    log p_im)`; with a = 1 they keep p_o, and a step with one clear winner is plain. The paper describes the bounds as
    a band around the entropy of p_im; in the code this entropy cancels.
    """
    log_p, log_q = original.log_softmax(-1), imagined.log_softmax(-1)
    margin = math.log(options["ratio"])
    likely = log_p > log_p.amax(-1, keepdim=True) - margin
    unlikely = log_p < log_p.amin(-1, keepdim=True) + margin
    undecided = likely.sum(-1, keepdim=True) > 1
    return log_p.where(likely & undecided | unlikely, log_q) + options["weight"] * (log_p - log_q)


def cocoa(original: Tensor, imagined: Tensor, options: Options) -> Tensor:
    """The core of CoCoA's released code (Khandelwal et al., EMNLP 2025, arXiv 2508.17670).

    `s·log p_o + (1 − s)·log p_im + a·(log p_o − log p_im)`. With its fixed s = 0.5 and a = 1, greedily the same as CAD
    with weight 0.5. The paper's share s per step is not included, as the code computes and then overwrites it. Nor are
    the penalty for repeated tokens, the mixture with the uniform distribution, and the ban on ending an answer within
    five tokens.
    """
    mixture = options["share"] * original + (1 - options["share"]) * imagined
    return mixture + options["weight"] * (original - imagined)


# Which view an answer trusts, for `grd`: not decided yet, the one with context, the one without.
OPEN, CONTEXT, HABIT = 0, 1, 2


def grd(original: Tensor, imagined: Tensor, options: Options) -> Tensor:
    """GRD (Jiang et al., 2026, arXiv 2606.10298): one view is trusted from the first step at which they disagree.

    It is the habit if it gives its token more than half of the probability and has less entropy than the view with
    context; otherwise the context. A token on which both views agree is taken. Where they disagree, the trusted
    context's is taken. The trusted habit chooses by `τ·log p_o + (1 − τ)·log p_im` with τ = (1 − depth)·τ*; at τ*
    the two views' tokens tie. `options["trust"]` (…, 1) holds each answer's trust, which this step updates in place;
    without it the step is an answer's first.
    """
    log_p, log_q = original.log_softmax(-1), imagined.log_softmax(-1)
    (top_p, of_context), (top_q, of_habit) = (view.max(-1, keepdim=True) for view in (log_p, log_q))
    conflict = of_context != of_habit
    entropy_p, entropy_q = (torch.special.entr(view.exp()).sum(-1, keepdim=True) for view in (log_p, log_q))
    decided = torch.where((top_q > math.log(0.5)) & (entropy_q < entropy_p), HABIT, CONTEXT)
    trust = options.get("trust", torch.full_like(of_habit, OPEN))
    trust.copy_(decided.where(conflict & (trust == OPEN), trust))
    by_context, by_habit = top_p - log_p.gather(-1, of_habit), top_q - log_q.gather(-1, of_context)
    margins = by_context + by_habit
    tie = (by_habit / margins).where(margins > 1e-9, 1.0)
    mixed = torch.lerp(log_q, log_p, (1 - options["depth"]) * tie)
    return mixed.where(conflict & (trust == HABIT), log_p)


FUNCTIONS: Mapping[str, Scores] = {scores.__name__: scores for scores in (plain, d2e, cad, adacad, coiecd, cocoa, grd)}
# Fixed combinations of both logits, which can be applied to hidden states before a linear head.
LINEAR = frozenset({"plain", "d2e", "cad", "cocoa"})


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

    @property
    def remembers(self) -> bool:
        """Whether a step depends on earlier ones, through the trust that `trusting` gives it."""
        return self.name == "grd"

    def trusting(self, trust: Tensor) -> ChosenDecoder:
        """The decoder of a step whose pairs have this trust (P, 1), which the step updates in place."""
        return replace(self, options={**self.options, "trust": trust})

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
