"""Messages, and dialogues that are asked turn by turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eval.run.task import Conversation
from eval.systems.conversations import ask_by_turns, assistant, turns


def test_turns_begin_with_the_user_and_an_empty_answer_is_an_ellipsis() -> None:
    assert turns("a", " ", "b") == [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "…"},
        {"role": "user", "content": "b"},
    ]
    assert assistant(" kept ")["content"] == " kept "


def test_a_pass_asks_all_dialogues_that_go_on_with_their_replies_so_far() -> None:
    asked: dict[str, Any] = {}

    class Asker:
        def ask(self, name: str, conversations: Sequence[Conversation], *, seed: int) -> list[str]:
            asked[name] = [chat.messages for chat in conversations]
            return [f" {name} {chat.id}, seed {seed} " for chat in conversations]

    asker: Any = Asker()
    replies = ask_by_turns(
        asker,
        "turn-{:02}",
        {"long": 2, "short": 1, "none": 0},
        lambda key, said: Conversation("d", key, turns("go", *said), []),
        seed=3,
    )
    assert replies == {
        "long": ["turn-01 long, seed 3", "turn-02 long, seed 3"],
        "short": ["turn-01 short, seed 3"],
        "none": [],
    }
    assert asked == {"turn-01": [turns("go"), turns("go")], "turn-02": [turns("go", "turn-01 long, seed 3")]}
