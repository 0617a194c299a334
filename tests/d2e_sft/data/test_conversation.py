"""Conversations: the shapes that are read, where the context is found, and what each view shows of them."""

from __future__ import annotations

from typing import Any

import pytest

from d2e_sft.data.conversation import ContextRule, chat_rows, prompt_turns, read_turns
from tests.chat_templates import CONVERSATION

SPAN = "<context>\nThe shop opens at nine.\n</context>\n"
OPENAI = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": f"{SPAN}When do you open?"},
    {"role": "assistant", "content": "At nine."},
    {"role": "user", "content": [{"type": "text", "text": "And on "}, {"type": "text", "text": "Sunday?"}]},
    {"role": "assistant", "content": " Not at all. "},
    {"role": "user", "content": "Thanks!"},
]
SHAREGPT = [
    {"from": {"user": "human", "assistant": "gpt"}.get(turn["role"], turn["role"]), "value": turn["content"]}
    for turn in OPENAI
]


@pytest.mark.parametrize("turns", [OPENAI, SHAREGPT])
def test_both_shapes_give_the_same_row(turns: list[dict[str, Any]]) -> None:
    (row,) = chat_rows(read_turns(turns), ContextRule(), "last")
    assert (row.context, row.question, row.answer) == ("The shop opens at nine.", "And on Sunday?", "Not at all.")
    original = row.conversation.messages(row.context)
    assert original[1]["content"] == f"{SPAN}When do you open?", "as the user wrote it"
    assert [turn["role"] for turn in original] == ["system", "user", "assistant", "user"]
    assert row.conversation.messages("")[1]["content"] == "When do you open?"
    assert row.conversation.messages("At nine.")[1]["content"] == "<context>\nAt nine.\n</context>\nWhen do you open?"


def test_each_answer_is_a_row_with_the_span_before_it() -> None:
    turns = [
        *read_turns(OPENAI)[:3],
        *read_turns([{"role": "user", "content": "<context>Closed on Sunday.</context> And on Sunday?"}]),
        *read_turns(OPENAI)[4:5],
    ]
    first, second = chat_rows(turns, ContextRule(), "each")
    assert (first.context, first.answer, first.number) == ("The shop opens at nine.", "At nine.", 1)
    assert (second.context, second.answer, second.number) == ("Closed on Sunday.", "Not at all.", 2)
    assert "The shop opens at nine." in str(second.conversation.messages("")), "what was said before stays"
    with pytest.raises(ValueError, match="after an assistant turn that is trained on"):
        chat_rows(turns, ContextRule(), "all")


def test_a_context_in_a_field_stands_where_the_turns_quote_it_or_before_the_question() -> None:
    quoted = read_turns(
        [{"role": "user", "content": "Given: it rains. Wet?"}, {"role": "assistant", "content": "Yes."}]
    )
    (row,) = chat_rows(quoted, ContextRule(""), "last", "it rains.")
    assert row.conversation.messages("")[0]["content"] == "Given:  Wet?"
    (row,) = chat_rows(quoted, ContextRule("", "Policy: {context}\n"), "last", "It pours.")
    assert row.conversation.messages("It pours.")[0]["content"] == "Policy: It pours.\nGiven: it rains. Wet?"
    assert row.conversation.messages("")[0]["content"] == "Given: it rains. Wet?"


@pytest.mark.parametrize(
    ("prompt", "without"),
    [
        ("Policy:\n{context}\n\nCustomer: {question}", "Customer: Why?"),
        ("Policy: {context}\nCustomer: {question}", "Customer: Why?"),
        ("{question} By {context}?", "Why? By ?"),
        ("{question}\n\nPolicy: {context}", "Why?\n\n"),
    ],
)
def test_a_prompt_without_context_loses_the_paragraph_or_line_of_it(prompt: str, without: str) -> None:
    conversation = prompt_turns(prompt, "Be kind.", "Why?")
    system, user = conversation.messages("{question} twice")
    assert system == {"role": "system", "content": "Be kind."}
    assert user["content"] == prompt.replace("{question}", "Why?").replace("{context}", "{question} twice")
    assert conversation.messages("")[1]["content"] == without


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("Hello", "expected a list of turns"),
        ([{"text": "Hello"}], "expected an object with `role` and `content`"),
        ([{"role": "critic", "content": "Hm."}], "messages.0.role: got 'critic'; expected one of system, user"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "without images"),
        ([{"role": "assistant", "content": "", "tool_calls": [{"id": 1}]}], "a tool call; only text turns"),
        ([{"role": "user", "content": None}], "got None; expected text"),
        (CONVERSATION[:1], "no assistant turn among user"),
        (CONVERSATION[1:2], "begins with an assistant turn"),
        ([CONVERSATION[0], {"role": "assistant", "content": " "}], "turn 2: an assistant turn without text"),
    ],
)
def test_other_data_than_a_conversation_with_an_answer_are_an_error(value: object, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        chat_rows(read_turns(value), ContextRule(), "last")
