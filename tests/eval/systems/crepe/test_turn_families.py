"""Conversations about one event, a step a turn: what stays in the prompt, and how replies are read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from eval.systems.crepe.demonstrations import load_demonstrations
from eval.systems.crepe.gold import LABELS
from tests.eval.systems.crepe.perfect import say_change_in_turn, say_yes_or_no, say_yes_or_no_from_the_start
from tests.eval.systems.crepe.procedures import last, run


@pytest.mark.parametrize("prompt", ["cot", "text_change"])
def test_earlier_answers_stay_in_the_prompt(tmp_path: Path, prompt: str) -> None:
    _, asker = run(tmp_path, say_change_in_turn, prompt=prompt, shots=0)
    assert [(name, len(chats)) for name, chats in asker.passes] == [("turn-01", 3), ("turn-02", 3), ("turn-03", 2)]
    chat = asker.passes[2][1][0]
    assert [m["content"] for m in chat.messages if m["role"] == "assistant"] == ['"more likely"', '"equally likely"']
    assert last(chat).splitlines() == [
        "Goal: Make tea",
        "Context: Boil the water. Pour it on the leaves. Wait an hour.",
        "Question: What is the likelihood that I burn my hand on the kettle?",
    ]
    assert "Context: Boil the water.\n" in chat.messages[1]["content"]
    assert "more likely" not in str(chat.imagined[1:]), "a reply may tell of the steps"


@pytest.mark.parametrize("prompt", ["cot", "text_change"])
def test_demonstrations_go_through_all_steps_of_an_event(tmp_path: Path, prompt: str) -> None:
    _, asker = run(tmp_path, lambda _: "", prompt=prompt)
    messages = asker.passes[0][1][0].messages
    replies = [message["content"] for message in messages if message["role"] == "assistant"]
    events = [(shown, shown.events[0]) for shown in load_demonstrations()[:3]]
    expected = [LABELS[event.label(step)] for shown, event in events for step in range(1, len(shown.steps) + 1)]
    found = [re.findall(r'"(.*)"\.?$', reply) for reply in replies]
    assert found == [[text] for text in expected]
    assert all(("At this point" in reply) == (prompt == "cot") for reply in replies)


def test_gold_states_follow_their_steps(tmp_path: Path) -> None:
    _, asker = run(tmp_path, lambda _: "", prompt="cot", entities="gold", shots=1)
    shown = "Boil the water. (the kettle: hot) Pour it on the leaves. Wait an hour. (the kettle: not hot; "
    assert f"Context: {shown}the tea: not hot)\n" in last(asker.passes[2][1][0])
    assert "(the lantern: glowing)" in str(asker.passes[0][1][0].messages), "demonstrations show theirs"


def test_a_chat_tells_the_steps_turn_by_turn_and_keeps_the_replies(tmp_path: Path) -> None:
    _, asker = run(tmp_path, say_yes_or_no, prompt="chat")
    assert [(name, len(chats)) for name, chats in asker.passes] == [("turn-01", 3), ("turn-02", 3), ("turn-03", 2)]
    chat = asker.passes[1][1][0]
    assert [message["role"] for message in chat.messages] == ["system", *["user", "assistant"], "user"]
    assert chat.messages[2]["content"] == "Yes"
    assert "Boil the water." in chat.messages[1]["content"]
    assert "Pour it on the leaves." in last(chat)
    assert "Wait an hour." not in str(chat.messages)


def test_an_independent_chat_begins_before_the_first_step(tmp_path: Path) -> None:
    _, asker = run(tmp_path, say_yes_or_no_from_the_start, prompt="chat", structure="independent")
    assert [len(chats) for _, chats in asker.passes] == [3, 3, 3, 2]
    chat = asker.passes[2][1][0]
    assert "I have not begun yet." in chat.messages[1]["content"]
    assert [message["content"] for message in chat.messages if message["role"] == "assistant"] == ["No", "Yes"]
