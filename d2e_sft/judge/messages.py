"""Prompts to a back end, its replies, and the protocols between engine and back end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict, Field


class Conversation(Protocol):
    """What is sent to an endpoint."""

    @property
    def messages(self) -> list[dict[str, str]]:
        """The turns so far, as chat models take them."""

    @property
    def label(self) -> str:
        """Name of the sample in messages to the user."""


@dataclass(frozen=True)
class Prompt:
    """A question to a judge as two messages; `label` names the sample to the user, and is ignored in comparisons."""

    system: str
    user: str
    label: str = field(default="", compare=False)

    @property
    def messages(self) -> list[dict[str, str]]:
        """The prompt as chat models take it."""
        return [{"role": "system", "content": self.system}, {"role": "user", "content": self.user}]

    @property
    def guessed_tokens(self) -> int:
        """Tokens of the prompt, by `guess_tokens`."""
        return guess_tokens(self.system) + guess_tokens(self.user)


class Reply(BaseModel):
    """A judge's answer; `text` is unchanged, and `cut_off` says that it ended at the token limit.

    Tokens are as the back end counted them; None if it did not.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    text: str
    prompt_tokens: int | None = Field(default=None, ge=0)
    completion_tokens: int | None = Field(default=None, ge=0)
    cut_off: bool = False


class Listener(Protocol):
    """Receives the events of a back end, from any thread."""

    def received(self, index: int, reply: Reply | None) -> None:
        """Called with the reply to the prompt at `index`; None if it was unusable."""

    def sending(self, index: int, *, retry: bool) -> None:
        """Called before each request for the prompt at `index`; `retry` if it repeats another.

        Raises UserError if the request could exceed the cost limit.
        """

    def refused(self, index: int) -> None:
        """Called if the last request for the prompt at `index` was refused, which costs nothing."""


class Backend(Protocol):
    """Answers prompts."""

    @property
    def model(self) -> str:
        """Name of the model, for messages."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """Everything that a reply depends on besides its prompt, as JSON; part of the reply's key in the cache."""

    @property
    def counts_tokens(self) -> bool:
        """Whether `prompt_tokens` counts; else it guesses from the length of the text."""

    def prompt_tokens(self, prompt: Prompt) -> int:
        """Return the tokens of a prompt."""

    def answer(self, prompts: Sequence[Prompt], listener: Listener) -> None:
        """Pass each reply to the listener as it arrives, in any order; UserError if the model cannot be asked."""


def guess_tokens(text: str) -> int:
    """Return one token for four characters, the usual rule of thumb; too few for scripts other than Latin."""
    return -(-len(text) // 4)
