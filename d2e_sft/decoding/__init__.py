"""Debiased decoding in process: two streams of tokens, one choice per step (PIPER paper, equation 6).

Functions are imported on first use, since scoring uses `PromptPair` without torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.decoding.pairs import OptionScore, Output, PromptPair, finished, token_pairs

if TYPE_CHECKING:
    from d2e_sft.decoding.generation import (
        answer_samples,
        generate,
        generate_debiased,
        sample_pairs,
        stop_token_ids,
    )
    from d2e_sft.decoding.likelihood import score

__all__ = [
    "DecodingConfig",
    "OptionScore",
    "Output",
    "PromptPair",
    "answer_samples",
    "finished",
    "generate",
    "generate_debiased",
    "sample_pairs",
    "score",
    "stop_token_ids",
    "token_pairs",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "likelihood" if name == "score" else "generation"
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
