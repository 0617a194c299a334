"""Debiased generation in process: two streams of tokens, one choice a step (PIPER paper, section 3.3)."""

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.decoding.batches import answer_samples, decode_prompts
from d2e_sft.decoding.generate import generate_debiased, stop_token_ids
from d2e_sft.decoding.likelihood import OptionScore, score_options

__all__ = [
    "DecodingConfig",
    "OptionScore",
    "answer_samples",
    "decode_prompts",
    "generate_debiased",
    "score_options",
    "stop_token_ids",
]
