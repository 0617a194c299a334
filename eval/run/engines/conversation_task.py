"""Conversations as a task: the prompts of the systems' own benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.data.chat_template import ChatEncoder, Messages
from d2e_sft.util.errors import UserError
from eval.run.engines.task import TokenPrompts, prompt_budget


@dataclass(frozen=True)
class Conversation:
    """One question to a model.

    Attributes:
        dataset, id: its name, of its own in its task; results are kept by it.
        messages: turns with `role` and `content`, up to where the answer begins.
        imagined: the same without what has to be read, which debiased decoding subtracts.
        group: conversations of a group begin alike.
    """

    dataset: str
    id: str
    messages: Messages
    imagined: Messages
    group: str = ""


@dataclass(frozen=True)
class ConversationTask:
    """Conversations that are answered alike.

    Attributes:
        name: of the task, for the progress bar.
        without_context: the imagined conversations are answered, plainly.
    """

    name: str
    conversations: Sequence[Conversation]
    decoding: DecodingConfig
    without_context: bool

    def __len__(self) -> int:
        return len(self.conversations)

    @property
    def title(self) -> str:
        """What is decoded, for a progress bar."""
        return f"{self.name}, " + ("without context" if self.without_context else f"α={self.decoding.alpha:g}")

    @property
    def groups(self) -> list[str]:
        """Of each conversation."""
        return [conversation.group for conversation in self.conversations]

    def label(self, place: int) -> str:
        """The conversation's name, for messages."""
        return f"prompt {self.conversations[place].id!r} of {self.name!r}"

    def messages(self, place: int) -> Messages:
        """The conversation that is answered."""
        conversation = self.conversations[place]
        return conversation.imagined if self.without_context else conversation.messages

    def tokens(self, tokenizer: Any, *, encoder_decoder: bool, limit: int | None) -> TokenPrompts:
        """See `Task.tokens`; nothing is cut."""
        encoder = ChatEncoder(tokenizer, encoder_decoder=encoder_decoder)
        originals = encoder.ids([self.messages(place) for place in range(len(self))])
        imagined = encoder.ids([chat.imagined for chat in self.conversations]) if self.decoding.alpha > 0 else None
        budget = prompt_budget(limit, self.decoding.max_new_tokens, encoder_decoder=encoder_decoder)
        self._refuse_too_long(originals, budget)
        return TokenPrompts(originals, imagined, frozenset(), encoder.end_of_turn)

    def _refuse_too_long(self, prompts: Sequence[list[int]], budget: int | None) -> None:
        too_long = [i for i, prompt in enumerate(prompts) if budget is not None and len(prompt) > budget]
        if too_long:
            longest = max(too_long, key=lambda i: len(prompts[i]))
            raise UserError(
                f"{len(too_long)} of {len(prompts)} prompts exceed the model's context: prompts may have {budget} "
                f"tokens beside {self.decoding.max_new_tokens} new ones, and the longest, {self.label(longest)}, has "
                f"{len(prompts[longest])}",
                remedy="lower --max-new-tokens, show fewer examples, or use a model with a longer context",
            )
