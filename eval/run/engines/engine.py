"""What an engine is asked, prompts that are decoded alike, and the protocol of one that answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.config.recipe import View
from d2e_sft.data.chat_template import ChatEncoder, Messages
from d2e_sft.util.errors import UserError
from eval.run.journal_files import Answer

OnAnswers = Callable[[list[Answer]], None]


@dataclass(frozen=True)
class TokenPrompts:
    """Token ids of a task's prompts.

    Attributes:
        originals: what is answered; in a pass without context the imagined prompts.
        imagined: what is subtracted; None where nothing is.
        truncated: places of the prompts whose contexts were cut.
        end_of_turn: the token that ends an answer.
        options: of each prompt the responses that are scored, where nothing is generated.
        given: of each prompt how many first tokens of its responses are given, and not scored.
    """

    originals: list[list[int]]
    imagined: list[list[int]] | None
    truncated: frozenset[int]
    end_of_turn: int
    options: list[list[list[int]]] | None = None
    given: list[int] | None = None


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """Prompts that are decoded alike; each has a place, from 0 on.

    Attributes:
        decoding: how; an endpoint has a temperature of its own where this one is 0.
        without_context: the imagined prompts are answered, plainly.
        as_text: the prompts are texts that the model continues; its chat template is left out.
    """

    decoding: DecodingConfig
    without_context: bool
    as_text: bool = False

    @property
    def title(self) -> str:
        """What is decoded, for a progress bar."""
        how = f"α={self.decoding.alpha:g}" if self.decoding.decoder == "d2e" else self.decoding.decoder
        return "without context" if self.without_context else how

    @property
    def view(self) -> View:
        """Which view of the prompts is answered."""
        return "imagined" if self.without_context else "original"

    @property
    @abstractmethod
    def groups(self) -> Sequence[Hashable]:
        """Of each prompt: those of a group begin alike."""

    @abstractmethod
    def __len__(self) -> int:
        """How many prompts."""

    @abstractmethod
    def label(self, place: int) -> str:
        """The name of a prompt, for messages."""

    @abstractmethod
    def messages(self, place: int, view: View | None = None) -> Messages:
        """The conversation up to the answer; None is the view that is answered."""

    @abstractmethod
    def shorten(
        self, prompts: list[list[int]], places: list[int], budget: int, tokenizer: Any, *, encoder_decoder: bool
    ) -> None:
        """Cut the prompts at these places to the budget, in place.

        Raises:
            UserError: they may not or cannot be cut.
        """

    def tokens(self, tokenizer: Any, *, encoder_decoder: bool, limit: int | None) -> TokenPrompts:
        """The prompts as token ids, fitted to the model's context; for the engines that take tokens.

        Args:
            limit: positions of the model; those of a decoder-only model hold the answer, too. None is no limit.

        Raises:
            UserError: a tokenizer without a chat template, or as `shorten`.
        """
        encoder = ChatEncoder(tokenizer, encoder_decoder=encoder_decoder, as_text=self.as_text)
        originals = encoder.ids([self.messages(place) for place in range(len(self))])
        too_long: list[int] = []
        if limit is not None:
            budget = limit - (0 if encoder_decoder else self.decoding.max_new_tokens)
            too_long = [place for place, prompt in enumerate(originals) if len(prompt) > budget]
            if too_long:
                self.shorten(originals, too_long, budget, tokenizer, encoder_decoder=encoder_decoder)
        imagined = None
        if self.decoding.needs_imagined:
            imagined = encoder.ids([self.messages(place, "imagined") for place in range(len(self))])
        return TokenPrompts(originals, imagined, frozenset(too_long), encoder.end_of_turn)

    def too_long(
        self,
        prompts: list[list[int]],
        places: list[int],
        budget: int,
        what: str,
        name: Callable[[int], str],
        remedy: str,
    ) -> UserError:
        """The refusal of the prompts at these places, which names the longest."""
        longest = max(places, key=lambda place: len(prompts[place]))
        return UserError(
            f"{len(places)} of {len(prompts)} {what}: prompts may have {budget} tokens beside "
            f"{self.decoding.max_new_tokens} new ones, and the longest, {name(longest)}, has {len(prompts[longest])}",
            remedy,
        )


class Engine(Protocol):
    """Decodes one task after another with the same model.

    Attributes:
        counts: what this engine alone has to count, in the task begun last.
    """

    name: str
    counts: dict[str, int]

    def begin(self, task: Task) -> Sequence[int]:
        """Take up a task; what follows is about it.

        Returns:
            a length for each prompt, by which work is shared out; tokens where they are known.

        Raises:
            UserError: prompts exceed the model's context and may not be cut.
        """

    def decode(self, places: Sequence[int], on_answers: OnAnswers) -> None:
        """Decode the prompts at these places; `on_answers` gets answers as they come, in any order, from any thread.

        Raises:
            UserError: the model cannot be asked, or not any more.
        """

    def environment(self) -> dict[str, Any]:
        """Versions and device, for the record."""
