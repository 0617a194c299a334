"""Conversations as a task: the prompts of the systems' own benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from d2e_sft.config.recipe import View
from d2e_sft.data.chat_template import Messages
from eval.run.engines.engine import Task
from eval.run.engines.option_task import OptionIds, OptionTask


@dataclass(frozen=True)
class Conversation:
    """One question to a model.

    Attributes:
        dataset, id: its name, of its own in its task; results are kept by it.
        messages: turns with `role` and `content`, up to where the answer begins.
        imagined: the same without what has to be read, which debiased decoding subtracts.
        group: conversations of a group begin alike.
        options: what may be answered, where options are scored.
    """

    dataset: str
    id: str
    messages: Messages
    imagined: Messages
    group: str = ""
    options: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ConversationTask(Task):
    """Conversations that are answered alike; `name` is the task's, for the progress bar."""

    name: str
    conversations: Sequence[Conversation]

    def __len__(self) -> int:
        return len(self.conversations)

    @property
    def title(self) -> str:
        return f"{self.name}, {super().title}"

    @property
    def groups(self) -> list[str]:
        return [conversation.group for conversation in self.conversations]

    def label(self, place: int) -> str:
        return f"prompt {self.conversations[place].id!r} of {self.name!r}"

    def messages(self, place: int, view: View | None = None) -> Messages:
        conversation = self.conversations[place]
        return conversation.imagined if (view or self.view) == "imagined" else conversation.messages

    def shorten(
        self, prompts: list[list[int]], places: list[int], budget: int, tokenizer: Any, *, encoder_decoder: bool
    ) -> None:
        """Refused: which part of a conversation could go is not known."""
        what = "prompts exceed the model's context"
        remedy = "lower --max-new-tokens, show fewer examples, or use a model with a longer context"
        raise self.too_long(prompts, places, budget, what, self.label, remedy)


@dataclass(frozen=True, kw_only=True)
class ConversationOptionTask(OptionTask, ConversationTask):
    """Conversations whose options are scored.

    To an encoder-decoder an option is what its decoder writes, with the end of the text, as it is trained.
    """

    def candidates(self, place: int) -> Sequence[str]:
        return self.conversations[place].options

    def option_ids(self, tokenizer: Any, *, encoder_decoder: bool) -> list[OptionIds]:
        known = {options: _encoded(tokenizer, options, encoder_decoder) for options in self._all_options()}
        return [(known[conversation.options], 0) for conversation in self.conversations]

    def _all_options(self) -> set[tuple[str, ...]]:
        return {conversation.options for conversation in self.conversations}


def _encoded(tokenizer: Any, options: tuple[str, ...], ended: bool) -> list[list[int]]:
    return list(tokenizer(list(options), add_special_tokens=ended)["input_ids"])
