"""A prompt in the queue, and the pieces of its answer; no stop text is part of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.decoding.pairs import TokenPair
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
    tokenizer: Any
    deliver: Callable[[Piece | Exception], None]
    left: bool = False  # nobody waits for the rest of the answer
    ended: bool = False
    _tokens: list[int] = field(default_factory=list)
    _sent: str = ""

    def take(self, token: int | None) -> None:
        """Add a token; None ends the answer."""
        if self.ended:
            return
        if token is not None:
            self._tokens.append(token)
        text = str(self.tokenizer.decode(self._tokens, skip_special_tokens=True))
        place = min((at for stop in self.prompt.stops if (at := text.find(stop)) >= 0), default=None)
        if place is not None:
            self._tell(text[:place], "stop")
        elif len(self._tokens) >= self.prompt.decoding.max_new_tokens:
            self._tell(text, "length")
        elif token is None:
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
            self.deliver(Piece(self.index, new, len(self._tokens), finish))
