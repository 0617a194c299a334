"""A prompt in the queue, and the pieces of its answer; no stop text is part of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.decoding.pairs import Output, TokenPair
from d2e_sft.server.openai import Finish


@dataclass(frozen=True)
class Piece:
    """The next text of an answer and its number of tokens so far; `finish` says why it ended, in its last piece."""

    index: int
    text: str
    tokens: int
    finish: Finish | None = None


@dataclass(frozen=True)
class Prompt:
    """What is decoded for a request: its prompts, how, and the tokens and texts that end the answer."""

    pair: TokenPair
    decoding: DecodingConfig
    stop_ids: tuple[int, ...]
    stops: Sequence[str] = ()

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for prompts that may be decoded together."""
        return self.decoding.decoder, self.decoding.plausibility, self.decoding.temperature, self.stop_ids


@dataclass(eq=False)
class Job:
    """A prompt in the queue. `deliver` gets the pieces of its answer or an error, from the thread that decodes."""

    prompt: Prompt
    index: int
    deliver: Callable[[Piece | Exception], None]
    left: bool = False  # nobody waits for the rest of the answer
    ended: bool = False
    _tokens: int = 0
    _sent: str = ""

    def take(self, output: Output) -> None:
        """Deliver what an answer has more than before."""
        text, self._tokens = output.text, len(output.tokens)
        place = min((at for stop in self.prompt.stops if (at := text.find(stop)) >= 0), default=None)
        if place is not None:
            self._tell(text[:place], "stop")
        elif self._tokens >= self.prompt.decoding.max_new_tokens:
            self._tell(text, "length")
        elif output.ended:
            self._tell(text, "stop")
        else:
            # What may be the beginning of a stop text or of a character waits for the next token.
            held = max((len(stop) - 1 for stop in self.prompt.stops), default=0)
            ready = text.rstrip("\ufffd")
            self._tell(ready[: max(0, len(ready) - held)], None)

    def _tell(self, text: str, finish: Finish | None) -> None:
        self.ended = finish is not None
        new = text[len(self._sent) :] if text.startswith(self._sent) or self.ended else ""
        if new or self.ended:
            self._sent += new
            self.deliver(Piece(self.index, new, self._tokens, finish))
