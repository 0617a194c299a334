"""What a user can set of decoding: one object, checked once and then handed on whole."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

from d2e_sft.util.errors import UserError


@dataclass(frozen=True)
class DecodingConfig:
    """How answers are decoded, in process and in vLLM; where transformers' `generate` has a name for it, that one.

    Attributes:
        alpha: the debias ratio α, any finite number from 0 on; 0 decodes plainly.
        max_new_tokens: tokens of an answer at most; the stop token that ends it is not counted.
        temperature: 0 takes the most likely token, else it divides the debiased logits before one is drawn.
        top_k, top_p: draw among the k likeliest tokens, and among the likeliest that hold `top_p` of the probability.
        plausibility: β in [0, 1]: only tokens to which the original view alone gives at least β times the probability
            of its likeliest token may be chosen (Li et al. 2023, contrastive decoding); 0 allows all.
        seed: of the draws. Each prompt has draws of its own, so that its batch does not matter.
        stop_strings: texts that end an answer; their tokens stay in it, as in transformers.
        num_beams: beam search is not supported; anything but 1 is an error.
        batch_size: prompts that are decoded together, in process.
        compiled: compile the step (torch.compile) and keep all shapes; pays on a GPU, from some hundred prompts on.

    Raises:
        UserError: a value is out of its range.
    """

    alpha: float = 0.5
    max_new_tokens: int = 64
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    plausibility: float = 0.0
    seed: int = 0
    stop_strings: Sequence[str] = ()
    num_beams: int = 1
    batch_size: int = 16
    compiled: bool = False

    def __post_init__(self) -> None:
        check_alpha(self.alpha)
        if self.num_beams != 1:
            raise UserError(
                f"num_beams={self.num_beams}: debiased decoding has no beam search, whose hypotheses would each need "
                "an imagined row of their own",
                "use num_beams=1 with temperature=0 (greedy), or sample with temperature > 0",
            )
        ranges = {
            "max_new_tokens": (self.max_new_tokens >= 1, "1 or more"),
            "temperature": (0 <= self.temperature < math.inf, "0 or more"),
            "top_k": (self.top_k >= 0, "0 (all tokens) or more"),
            "top_p": (0 < self.top_p <= 1, "above 0 and at most 1"),
            "plausibility": (_is_number(self.plausibility) and 0 <= self.plausibility <= 1, "0 to 1"),
            "batch_size": (self.batch_size >= 1, "1 or more"),
        }
        for name, (fits, expected) in ranges.items():
            if not fits:
                raise UserError(f"{name}={getattr(self, name)}: out of range; expected {expected}")
        if isinstance(self.stop_strings, str) or not all(self.stop_strings):
            raise UserError(f"stop_strings={self.stop_strings!r}: expected a list of texts, none of them empty")


def check_alpha(alpha: Any) -> None:
    """Refuse what is no debias ratio; the one bound that α has, wherever it comes from.

    Raises:
        UserError: it is not a number, negative or not finite.
    """
    if not (_is_number(alpha) and 0 <= alpha < math.inf):
        raise UserError(f"alpha={alpha}: not a debias ratio; expected a finite number, 0 or more")


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
