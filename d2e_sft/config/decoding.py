"""How tokens are chosen and when an answer ends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from d2e_sft.util.errors import UserError


@dataclass(frozen=True)
class DecodingOptions:
    """Options of `generate_debiased`, under the names that transformers' `generate` gives them.

    Attributes:
        max_new_tokens: tokens at most, the stop token not counted.
        stop_ids: tokens that end an answer and are no part of it; None takes those of the generation config.
        stop_strings: texts that end an answer; their tokens stay in it, as in transformers. Needs `tokenizer`.
        temperature: 0 takes the most likely token, else it divides the debiased logits before one is drawn.
        top_k, top_p: draw among the k likeliest tokens, and among the likeliest that hold `top_p` of the probability.
        plausibility: β in [0, 1]: only tokens to which the original view alone gives at least β times the probability
            of its likeliest token may be chosen (Li et al. 2023, contrastive decoding); 0 allows all.
        seed: of the draws. Each prompt has draws of its own, so that its batch does not matter.
        num_beams: beam search is not supported; anything but 1 is an error.
        pad_id: fills masked places where there are any.
        compiled: compile the step (torch.compile) and keep all shapes; pays on a GPU, from some hundred prompts on.
    """

    max_new_tokens: int = 64
    stop_ids: Sequence[int] | None = None
    stop_strings: Sequence[str] = ()
    tokenizer: Any = None
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    plausibility: float = 0.0
    seed: int = 0
    num_beams: int = 1
    pad_id: int = 0
    compiled: bool = False

    def __post_init__(self) -> None:
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
            "plausibility": (0 <= self.plausibility <= 1, "0 to 1"),
        }
        for name, (fits, expected) in ranges.items():
            if not fits:
                raise UserError(f"{name}={getattr(self, name)}: out of range; expected {expected}")
        if isinstance(self.stop_strings, str) or not all(self.stop_strings):
            raise UserError(f"stop_strings={self.stop_strings!r}: expected a list of texts, none of them empty")
        if self.stop_strings and self.tokenizer is None:
            raise UserError("stop_strings without a tokenizer to read the tokens with", "pass tokenizer=…")


def check_alphas(alphas: Sequence[float]) -> None:
    """Refuse debias ratios that are negative or not finite."""
    for alpha in alphas:
        if not 0 <= alpha < math.inf:
            raise UserError(f"alpha={alpha}: not a debias ratio; expected a finite number, 0 or more")


def merged_stop_ids(configured: int | list[int] | None, end_of_turn: int | None) -> list[int]:
    """The end-of-turn token and what a generation config names as `eos_token_id`, sorted."""
    listed = configured if isinstance(configured, list) else [configured]
    return sorted({token for token in (end_of_turn, *listed) if token is not None})
