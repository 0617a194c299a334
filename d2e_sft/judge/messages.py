"""What goes to a back end and what comes back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict, Field


class Conversation(Protocol):
    """What an endpoint is sent."""

    @property
    def messages(self) -> list[dict[str, str]]:
        """The turns so far, in the form that chat models take."""

    @property
    def label(self) -> str:
        """Names the sample in messages to the user."""


@dataclass(frozen=True)
class Prompt:
    """A question to a judge.

    Attributes:
        system, user: the two messages.
        label: names the sample in messages to the user; two prompts that differ in nothing else are the same.
    """

    system: str
    user: str
    label: str = field(default="", compare=False)

    @property
    def messages(self) -> list[dict[str, str]]:
        """The prompt in the form that chat models take."""
        return [{"role": "system", "content": self.system}, {"role": "user", "content": self.user}]


class Reply(BaseModel):
    """What a judge answered.

    Attributes:
        text: the answer, unchanged.
        prompt_tokens, completion_tokens: as the back end counted them; None where it did not.
        cut_off: whether the answer ended only because it reached its token limit.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    text: str
    prompt_tokens: int | None = Field(default=None, ge=0)
    completion_tokens: int | None = Field(default=None, ge=0)
    cut_off: bool = False


class Listener(Protocol):
    """Is told, from any thread, how a back end gets on."""

    def received(self, index: int, reply: Reply | None) -> None:
        """The reply to the prompt at `index` is there; None for one that was no reply at all."""

    def sending(self, index: int) -> None:
        """The prompt at `index` is about to be sent, perhaps once more.

        Raises:
            UserError: it must not be: that could cost more than it may.
        """

    def refused(self, index: int) -> None:
        """What was sent last for the prompt at `index` was refused, which costs nothing."""

    def retried(self) -> None:
        """A prompt has to be sent once more."""


class Backend(Protocol):
    """Answers prompts; `d2e_sft.judge.judge` does everything else."""

    @property
    def model(self) -> str:
        """The model's name, for messages."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """All that a reply depends on besides its prompt; JSON, part of the key under which it is kept."""

    @property
    def counts_tokens(self) -> bool:
        """Whether `prompt_tokens` counts, or guesses from the length of the text."""

    def prompt_tokens(self, prompt: Prompt) -> int:
        """The tokens of a prompt."""

    def answer(self, prompts: Sequence[Prompt], listener: Listener) -> None:
        """Tell the listener each prompt's reply as soon as it is there, in any order.

        Raises:
            UserError: the model cannot be asked, or not any more.
        """


def guess_tokens(text: str) -> int:
    """The usual rule of thumb, four characters a token; an underestimate for scripts other than the Latin one."""
    return -(-len(text) // 4)
