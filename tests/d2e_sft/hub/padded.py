"""Prompts as transformers' `generate` takes them, and its answers without what it adds."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from d2e_sft.model.collation import left_pad


def left_padded(
    prompts: list[list[int]], names: tuple[str, str] = ("input_ids", "attention_mask")
) -> dict[str, Tensor]:
    """Tokens and mask, padded with 0 on the left."""
    padded = left_pad(prompts, 0)
    return {names[0]: padded["input_ids"], names[1]: padded["attention_mask"]}


def pairs(originals: list[list[int]], imagined: list[list[int]]) -> dict[str, Tensor]:
    """The four inputs of debiased decoding."""
    return {
        **left_padded(originals),
        **left_padded(imagined, ("imagined_input_ids", "imagined_attention_mask")),
    }


def answers(sequences: Any, prompt_tokens: int, stops: list[int]) -> list[list[int]]:
    """The new tokens of each sequence, up to the first stop token."""
    found = []
    for sequence in sequences[:, prompt_tokens:].tolist():
        end = next((i for i, token in enumerate(sequence) if token in stops), len(sequence))
        found.append(sequence[:end])
    return found
