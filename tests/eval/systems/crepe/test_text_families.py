"""Prompts in plain words: what they show, and how they end."""

from __future__ import annotations

import re
from pathlib import Path

from eval.systems.crepe.demonstrations import load_demonstrations
from eval.systems.crepe.gold import LABELS
from tests.eval.systems.crepe.perfect import say_change, say_level, say_yes_or_no
from tests.eval.systems.crepe.procedures import BURN, last, run


def test_plain_text_asks_for_each_event_before_and_after_each_step(tmp_path: Path) -> None:
    _, asker = run(tmp_path, say_level, prompt="text", shots=0)
    ((name, chats),) = asker.asked
    assert name == "answers"
    assert [chat.id for chat in chats][:5] == [*(f"3/event0/step{n}" for n in range(4)), "3/event1/step0"]
    assert len(chats) == 2 * 4 + 3
    assert last(chats[0]).splitlines()[:3] == ["Goal: Make tea", "Done so far: (nothing yet)", f"Event: {BURN}"]
    assert "Done so far: Boil the water. Pour it on the leaves.\n" in last(chats[2])
    assert "Done so far: (not shown)\n" in chats[2].imagined[-1]["content"]


def test_gold_states_follow_their_steps(tmp_path: Path) -> None:
    _, asker = run(tmp_path, say_change, prompt="cot", entities="gold", shots=1)
    chats = {chat.id: chat for chat in asker.asked[0][1]}
    shown = "Boil the water. (the kettle: hot) Pour it on the leaves. Wait an hour. (the kettle: not hot; "
    assert f"Done so far: {shown}the tea: not hot)\n" in last(chats["3/event0/step3"])
    assert "(the lantern: glowing)" in str(chats["3/event0/step3"].messages), "demonstrations show theirs"


def test_a_chain_of_thought_demonstration_ends_in_its_label(tmp_path: Path) -> None:
    _, asker = run(tmp_path, say_change, prompt="cot")
    replies = [m["content"] for m in asker.asked[0][1][0].messages if m["role"] == "assistant"]
    events = [(shown, shown.events[0]) for shown in load_demonstrations()]
    expected = [LABELS[event.label(step)] for shown, event in events for step in range(1, len(shown.steps) + 1)]
    assert [re.findall(r'likelihood change is "(.*)"\.$', reply) for reply in replies] == [[text] for text in expected]


def test_self_ask_goes_from_the_state_to_the_event(tmp_path: Path) -> None:
    _, asker = run(tmp_path, say_level, prompt="self_ask", shots=1)
    reply = asker.asked[0][1][0].messages[2]["content"].splitlines()
    event = load_demonstrations()[0].events[0]
    assert reply == [
        f"Follow up: {event.ask}",
        "Intermediate answer: No.",
        f"Follow up: {event.link}",
        "Intermediate answer: No.",
        "Answer: very unlikely",
    ]


def test_a_chat_tells_the_steps_turn_by_turn_and_keeps_the_replies(tmp_path: Path) -> None:
    _, asker = run(tmp_path, say_yes_or_no, prompt="chat")
    assert [(name, len(chats)) for name, chats in asker.asked] == [
        ("turn-01", 3), ("turn-02", 3), ("turn-03", 3), ("turn-04", 2)
    ]  # fmt: skip
    chat = asker.asked[2][1][0]
    assert [message["role"] for message in chat.messages] == ["system", *["user", "assistant"] * 2, "user"]
    assert [message["content"] for message in chat.messages if message["role"] == "assistant"] == ["No", "Yes"]
    assert "Boil the water." in chat.messages[3]["content"]
    assert "Pour it on the leaves." in last(chat)
    assert "Wait an hour." not in str(chat.messages)
