"""What an engine is asked: prompts, and how to decode them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from d2e_sft.config.decoding import DecodingConfig


@dataclass(frozen=True)
class TokenPrompts:
    """Token ids of a task's prompts.

    Attributes:
        originals: what is answered; in a pass without context the imagined prompts.
        imagined: what is subtracted; None where nothing is.
        truncated: places of the prompts whose contexts were cut.
        end_of_turn: the token that ends an answer.
    """

    originals: list[list[int]]
    imagined: list[list[int]] | None
    truncated: frozenset[int]
    end_of_turn: int


class Task(Protocol):
    """Prompts that are decoded alike; each has a place, from 0 on."""

    @property
    def decoding(self) -> DecodingConfig:
        """How all of them are decoded; an endpoint has a temperature of its own where this one is 0."""

    @property
    def title(self) -> str:
        """What is decoded, for a progress bar."""

    @property
    def groups(self) -> Sequence[Hashable]:
        """Of each prompt: those of a group begin alike."""

    def __len__(self) -> int:
        """How many prompts."""

    def label(self, place: int) -> str:
        """The name of a prompt, for messages."""

    def messages(self, place: int) -> list[dict[str, str]]:
        """The conversation up to the answer, for the engines that take text."""

    def tokens(self, tokenizer: Any, *, encoder_decoder: bool, limit: int | None) -> TokenPrompts:
        """The prompts as token ids, fitted to the model's context; for the engines that take tokens.

        Args:
            limit: positions of the model; those of a decoder-only model hold the answer, too. None is no limit.

        Raises:
            UserError: a tokenizer without a chat template, or prompts beyond the limit that may not or cannot be cut.
        """


def prompt_budget(limit: int | None, max_new_tokens: int, *, encoder_decoder: bool) -> int | None:
    """How many tokens a prompt may have beside its answer; None is no limit."""
    return None if limit is None else limit - (0 if encoder_decoder else max_new_tokens)
