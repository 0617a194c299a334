"""What goes to a back end and what comes back."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from d2e_sft.judge.messages import Prompt, Reply, guess_tokens


def test_a_prompt_is_two_messages_and_its_label_is_no_part_of_it() -> None:
    prompt = Prompt("Judge.", "Is it so?", label="row 1")
    assert prompt.messages == [
        {"role": "system", "content": "Judge."},
        {"role": "user", "content": "Is it so?"},
    ]
    assert prompt == Prompt("Judge.", "Is it so?", label="row 2")
    assert len({prompt, Prompt("Judge.", "Is it so?")}) == 1


def test_a_reply_is_read_from_what_was_kept_and_from_nothing_else() -> None:
    reply = Reply(text="yes", prompt_tokens=3)
    assert Reply.model_validate_json(reply.model_dump_json()) == reply
    for content in ('{"text": "yes", "prompt_tokens": -1}', '{"text": "yes", "more": 1}', "{}"):
        with pytest.raises(ValidationError):
            Reply.model_validate_json(content)


@pytest.mark.parametrize(("text", "tokens"), [("", 0), ("a", 1), ("abcd", 1), ("abcde", 2)])
def test_tokens_are_guessed_at_four_characters_each(text: str, tokens: int) -> None:
    assert guess_tokens(text) == tokens
