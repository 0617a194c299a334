"""Debiased generation in process: two streams of tokens, one choice a step (PIPER paper, section 3.3)."""

from d2e_sft.config.decoding import DecodingOptions
from d2e_sft.decoding.batches import decode_prompts
from d2e_sft.decoding.generate import generate_debiased, stop_token_ids
from d2e_sft.decoding.samples import answer_samples

__all__ = ["DecodingOptions", "answer_samples", "decode_prompts", "generate_debiased", "stop_token_ids"]
