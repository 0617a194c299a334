"""Conversations as a task: which side is asked, what they are called, and that none is cut."""

from __future__ import annotations

import pytest

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.util.errors import UserError
from eval.run.engines.conversation_task import Conversation, ConversationTask
from tests.tiny import tiny_tokenizer


def task(*texts: str, without_context: bool = False) -> ConversationTask:
    return ConversationTask(
        name="states",
        conversations=[
            Conversation(
                "d", f"c{i}", [{"role": "user", "content": text}], [{"role": "user", "content": "?"}], group=text[:2]
            )
            for i, text in enumerate(texts)
        ],
        decoding=DecodingConfig(alpha=0.0 if without_context else 0.5, max_new_tokens=5),
        without_context=without_context,
    )


def test_a_task_asks_its_conversations_or_their_imagined_side() -> None:
    assert task("Rain fell.").messages(0) == [{"role": "user", "content": "Rain fell."}]
    assert task("Rain fell.", without_context=True).messages(0) == [{"role": "user", "content": "?"}]
    assert task("Rain fell.").messages(0, "imagined") == [{"role": "user", "content": "?"}]


def test_its_title_and_groups_are_those_of_the_pass() -> None:
    assert task("a").title == "states, α=0.5"
    assert task("a", without_context=True).title == "states, without context"
    assert task("Rain", "Ra", "Snow").groups == ["Ra", "Ra", "Sn"]


def test_no_conversation_is_cut_and_the_longest_is_named() -> None:
    long = task("Rain.", "Rain fell. " * 50, "Rain fell. " * 90)
    with pytest.raises(
        UserError,
        match=r"2 of 3 prompts exceed .* prompts may have 195 .* longest, prompt 'c2' of 'states', has",
    ):
        long.tokens(tiny_tokenizer(), encoder_decoder=False, limit=200)
