"""A conversation about a context: its two prompts, and the answers to the next turn.

The context stands before the last thing that the user said, as in a chat request to `d2e serve`; the imagined prompt
is the same conversation without it. So the context can be replaced between two turns, and both prompts know the
turns so far.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.data.chat_template import ChatEncoder, Messages, pad_id
from d2e_sft.decoding import generate_debiased, stop_token_ids
from d2e_sft.model.loading import LoadedModel
from d2e_sft.model.positions import position_limit
from d2e_sft.util.errors import UserError

OnText = Callable[[str], object]  # gets each new piece of an answer


@dataclass(frozen=True)
class Wording:
    """What is put around what the user says.

    Attributes:
        system: the system message; empty is none.
        context: the context line, with `{context}`.
        user: a turn, with `{context_block}` and `{question}`.
    """

    system: str = ""
    context: str = "Context: {context}\n"
    user: str = "{context_block}{question}"

    def turn(self, question: str, context: str = "") -> str:
        """One turn of the user; braces in either text are text."""
        block = self.context.replace("{context}", context) if context.strip() else ""
        before, placed, after = self.user.partition("{context_block}")
        parts = [before, block if placed else "", after]
        return "".join(part if part is block else part.replace("{question}", question) for part in parts)


@dataclass(frozen=True)
class Reply:
    """The answers to one turn.

    Attributes:
        plain: with the context, nothing subtracted.
        debiased: what the decoder says; None where there is no context to contrast with, or nothing is subtracted.
        forgotten: how many of the oldest turns had to be left out.
    """

    plain: str
    debiased: str | None = None
    forgotten: int = 0

    @property
    def kept(self) -> str:
        """The answer that the conversation goes on with."""
        return self.plain if self.debiased is None else self.debiased


@dataclass
class Conversation:
    """A model, a context and the turns so far.

    Attributes:
        decoding: how the debiased answer is decoded; may be replaced between two turns.
        wording: of system, context line and turns.
        context: what the next turn is about; empty: nothing, and answers are plain.
        turns: question and answer of each turn, as they were said.
    """

    loaded: LoadedModel
    decoding: DecodingConfig
    wording: Wording = Wording()
    context: str = ""
    turns: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        config = self.loaded.model.config
        self._encoder = ChatEncoder(self.loaded.tokenizer, encoder_decoder=config.is_encoder_decoder)
        # Of an encoder-decoder the answer has positions of its own.
        limit = position_limit(config)
        self._limit = None if limit is None or config.is_encoder_decoder else limit

    def messages(self, question: str, *, context: str, forgotten: int = 0) -> Messages:
        """The conversation up to the answer, without its oldest turns."""
        messages = [{"role": "system", "content": self.wording.system}] if self.wording.system else []
        for asked, answer in self.turns[forgotten:]:
            messages.append({"role": "user", "content": self.wording.turn(asked)})
            messages.append({"role": "assistant", "content": answer})
        return [*messages, {"role": "user", "content": self.wording.turn(question, context)}]

    def ask(self, question: str, *, on_plain: OnText | None = None, on_debiased: OnText | None = None) -> Reply:
        """Answer a turn and remember it, with the debiased answer where there is one.

        Raises:
            UserError: context and question alone are longer than the model's context. Nothing is remembered then, nor
                where an answer is interrupted.
        """
        forgotten, original = self._fitted(question)
        [imagined] = self._encoder.ids([self.messages(question, context="", forgotten=forgotten)])
        plain = self._decode(original, None, replace(self.decoding, decoder="plain", plausibility=0.0), on_plain)
        debiased = None
        if self.context.strip() and self.decoding.needs_imagined:
            debiased = self._decode(original, imagined, self.decoding, on_debiased)
        reply = Reply(plain, debiased, forgotten)
        self.turns.append((question, reply.kept))
        return reply

    def _fitted(self, question: str) -> tuple[int, list[int]]:
        """How many of the oldest turns are left out so that the rest fits, and the original prompt's tokens."""
        for forgotten in range(len(self.turns) + 1):
            [prompt] = self._encoder.ids([self.messages(question, context=self.context, forgotten=forgotten)])
            if self._limit is None or len(prompt) + self.decoding.max_new_tokens <= self._limit:
                return forgotten, prompt
        room = (self._limit or 0) - self.decoding.max_new_tokens
        raise UserError(
            f"context and question have {len(prompt):,} tokens; expected at most {room:,}, as the model has "
            f"{self._limit:,} and an answer may have {self.decoding.max_new_tokens:,}",
            remedy="shorten the context, or lower --max-new-tokens",
        )

    def _decode(
        self, original: list[int], imagined: list[int] | None, decoding: DecodingConfig, on_text: OnText | None
    ) -> str:
        tokenizer, model = self.loaded.tokenizer, self.loaded.model
        stream = _Stream(tokenizer, on_text) if on_text is not None else None
        [tokens] = generate_debiased(
            model,
            [original],
            None if imagined is None else [imagined],
            decoding,
            on_token=None if stream is None else stream.add,
            stop_ids=stop_token_ids(model, self._encoder.end_of_turn),
            pad_id=pad_id(tokenizer),
        )
        text = str(tokenizer.decode(tokens, skip_special_tokens=True)).strip()
        if stream is not None:
            stream.end(text)
        return text


class _Stream:
    """New tokens as text; a character that is not complete yet waits for the next token."""

    def __init__(self, tokenizer: Any, on_text: OnText) -> None:
        self._tokenizer, self._on_text = tokenizer, on_text
        self._tokens: list[int] = []
        self._said = ""

    def add(self, index: int, token: int) -> None:
        self._tokens.append(token)
        text = str(self._tokenizer.decode(self._tokens, skip_special_tokens=True)).lstrip()
        if not text.endswith("\ufffd"):
            self.end(text)

    def end(self, text: str) -> None:
        """Say what of a text has not been said."""
        if text.startswith(self._said) and len(text) > len(self._said):
            self._on_text(text[len(self._said) :])
            self._said = text
