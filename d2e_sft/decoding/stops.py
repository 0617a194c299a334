"""What ends an answer: a stop token, a stop string, or its length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from d2e_sft.data.chat_template import merged_stop_ids
from d2e_sft.util.errors import UserError


def stop_token_ids(model: Any, end_of_turn: int | None = None) -> list[int]:
    """Return the end-of-turn token and the stop tokens of the model's generation config."""
    return merged_stop_ids(getattr(model.generation_config, "eos_token_id", None), end_of_turn)


class Stops:
    """What ends an answer: a token, which is not part of it, or a string, which is."""

    def __init__(self, model: Any, stop_ids: Sequence[int] | None, strings: Sequence[str], tokenizer: Any) -> None:
        if strings and tokenizer is None:
            raise UserError("stop_strings need a tokenizer to read the tokens with", "pass tokenizer=…")
        self.ids = frozenset(stop_token_ids(model) if stop_ids is None else stop_ids)
        self.strings, self.tokenizer = strings, tokenizer

    def end(self, answer: Sequence[int]) -> bool:
        """Whether the answer so far holds a stop string."""
        if not self.strings:
            return False
        text = self.tokenizer.decode(answer)
        return any(string in text for string in self.strings)

    def add(self, token: int, answer: list[int], longest: int) -> Iterator[int | None]:
        """Add a token to an answer, unless it only ends it; yields it, and None after the last one."""
        if token not in self.ids:
            answer.append(token)
            yield token
        if token in self.ids or len(answer) == longest or self.end(answer):
            yield None
