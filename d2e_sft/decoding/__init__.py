"""Debiased decoding in process: two streams of tokens, one choice per step (PIPER paper, equation 6).

Functions are imported on first use, since scoring uses `PromptPair` without torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.decoding.pairs import OptionScore, PromptPair, token_pairs

if TYPE_CHECKING:
    from d2e_sft.decoding.generation import generate, generate_debiased, stream
    from d2e_sft.decoding.likelihood import score
    from d2e_sft.decoding.samples import answer_samples, sample_pairs
    from d2e_sft.decoding.stops import stop_token_ids

__all__ = [
    "DecodingConfig",
    "OptionScore",
    "PromptPair",
    "answer_samples",
    "generate",
    "generate_debiased",
    "sample_pairs",
    "score",
    "stop_token_ids",
    "stream",
    "token_pairs",
]
_HOMES = {
    **dict.fromkeys(("generate", "generate_debiased", "stream"), "generation"),
    "score": "likelihood",
    "stop_token_ids": "stops",
    **dict.fromkeys(("answer_samples", "sample_pairs"), "samples"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
