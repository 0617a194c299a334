"""Debiased generation in process: two streams of tokens, one choice a step (PIPER paper, section 3.3)."""

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.decoding.batches import answer_samples, decode_prompts
from d2e_sft.decoding.generate import generate_debiased, stop_token_ids

__all__ = ["DecodingConfig", "answer_samples", "decode_prompts", "generate_debiased", "stop_token_ids"]
