"""The harness's log-likelihood requests as prompts with options, tokenised like its own `hf` model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from d2e_sft.decoding.pairs import PromptPair, TokenPair
from d2e_sft.util.errors import UserError

Tokens = list[int]


@dataclass(frozen=True)
class ContinuationEncoder:
    """Tokenises prompts and the texts after them.

    Args:
        tokenizer: a transformers tokenizer.
        limit: positions of the model; None: no limit.
    """

    tokenizer: Any
    limit: int | None

    @property
    def first(self) -> int:
        """The token before a text without a prompt: BOS, else EOS."""
        bos = self.tokenizer.bos_token_id
        token: int = self.tokenizer.eos_token_id if bos is None else bos
        return token

    def encode(self, original: str, imagined: str, text: str) -> TokenPair:
        """Encode a prompt in both views and the text after it, its option; blanks between them belong to the text.

        A prompt that is too long loses its beginning (`truncated`).

        Raises:
            UserError: the text has no token, or more than the model's positions.
        """
        if original:
            end = len(original.rstrip())
            text, original = original[end:] + text, original[:end]
        prompt = self.tokens(original) if original else [self.first]
        tokens = self.tokens(original + text)[len(prompt) :] if original else self.tokens(text, special=False)
        if not original and tokens[:1] == prompt:
            tokens = tokens[1:]  # the text has its own BOS token
        if not tokens or (self.limit is not None and len(tokens) > self.limit):
            found = "has no token" if not tokens else f"has {len(tokens)} tokens, and the model takes {self.limit}"
            raise UserError(f"log-likelihood of {text[:60]!r}: {found}; expected at least one, and no more than fit")
        without = imagined.rstrip()
        other = self.tokens(without) if without else [self.first]
        room = max(len(prompt), len(other)) if self.limit is None else self.limit + 1 - len(tokens)
        cut = len(prompt) > room
        imagined_prompt = prompt[-room:] if other == prompt else other[-room:]
        return PromptPair(prompt[-room:], imagined_prompt, [tokens], truncated=cut)

    def windows(self, text: str) -> list[TokenPair]:
        """Split a text into pieces that fit the model, each after at least the token before it."""
        tokens = self.tokens(text)
        pieces = get_rolling_token_windows(tokens, self.first, self.limit or max(len(tokens), 1), 1)
        return [PromptPair(prompt, prompt, [rest]) for prompt, rest in map(make_disjoint_window, pieces)]

    def tokens(self, text: str, *, special: bool = True) -> Tokens:
        """Token ids of a text, with the special tokens that it lacks."""
        start = self.tokenizer.bos_token or self.tokenizer.eos_token
        # A chat template writes the BOS token.
        special = special and not (start and text.startswith(start))
        ids: Tokens = self.tokenizer(text, add_special_tokens=special)["input_ids"]
        return ids
