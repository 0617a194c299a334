"""Messages, and dialogues that are asked turn by turn."""

from __future__ import annotations

from typing import Any

from eval.run.task import Conversation
from eval.systems.conversations import ask_by_turns, assistant, turns
from tests.factories import ScriptedAsker


def test_turns_begin_with_the_user_and_an_empty_answer_is_an_ellipsis() -> None:
    assert turns("a", " ", "b") == [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "…"},
        {"role": "user", "content": "b"},
    ]
    assert assistant(" kept ")["content"] == " kept "


def test_a_pass_asks_all_dialogues_that_go_on_with_their_replies_so_far() -> None:
    asker: Any = ScriptedAsker(lambda name, chat: f" {name} {chat.id} ")
    replies = ask_by_turns(
        asker,
        "turn-{:02}",
        {"long": 2, "short": 1, "none": 0},
        lambda key, said: Conversation("d", key, turns("go", *said), []),
        seed=3,
    )
    assert replies == {"long": ["turn-01 long", "turn-02 long"], "short": ["turn-01 short"], "none": []}
    asked = {name: [chat.messages for chat in chats] for name, chats in asker.asked.items()}
    assert asked == {"turn-01": [turns("go"), turns("go")], "turn-02": [turns("go", "turn-01 long")]}
    assert asker.sampling == {"turn-01": (0.0, 3), "turn-02": (0.0, 3)}
