"""Prompts and replies."""

from __future__ import annotations

import pytest

from d2e_sft.judge.messages import Prompt, guess_tokens


def test_a_prompt_is_two_messages_and_its_label_is_ignored_in_comparisons() -> None:
    prompt = Prompt("Judge.", "Is it so?", label="row 1")
    assert prompt.messages == [{"role": "system", "content": "Judge."}, {"role": "user", "content": "Is it so?"}]
    assert prompt == Prompt("Judge.", "Is it so?", label="row 2")
    assert prompt.guessed_tokens == 2 + 3


@pytest.mark.parametrize(("text", "tokens"), [("", 0), ("a", 1), ("abcd", 1), ("abcde", 2)])
def test_tokens_are_guessed_at_four_characters_each(text: str, tokens: int) -> None:
    assert guess_tokens(text) == tokens
