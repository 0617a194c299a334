"""Debiased decoding in process: two streams of tokens, one choice per step (PIPER paper, section 3.3)."""

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.decoding.generation import generate, generate_debiased, stop_token_ids, stream
from d2e_sft.decoding.likelihood import OptionScore, score
from d2e_sft.decoding.pairs import PromptPair, token_pairs
from d2e_sft.decoding.samples import answer_samples, sample_pairs

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
