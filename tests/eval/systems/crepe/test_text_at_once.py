"""All steps in one reply."""

from __future__ import annotations

from pathlib import Path

from tests.eval.systems.crepe.perfect import say_all_levels
from tests.eval.systems.crepe.procedures import last, run


def test_one_prompt_an_event_lists_the_steps(tmp_path: Path) -> None:
    _, asker = run(tmp_path, say_all_levels, prompt="text_at_once", shots=1)
    ((name, chats),) = asker.passes
    assert (name, [chat.id for chat in chats]) == ("answers", ["3/event0", "3/event1", "5/event0"])
    lines = last(chats[0]).splitlines()
    assert lines[0] == '"Make tea" involves these steps:'
    assert lines[1:4] == ["1. Boil the water.", "2. Pour it on the leaves.", "3. Wait an hour."]
    assert "how likely it is that I burn my hand on the kettle." in lines[-1]
    assert chats[0].messages[2]["content"].splitlines()[:2] == ["Step 1: (D) unlikely", "Step 2: (A) very likely"]
    assert "2. (not shown)" in chats[0].imagined[-1]["content"]


def test_levels_are_compared_step_by_step(tmp_path: Path) -> None:
    replies = {"3/event0": "Step 1: (C) not very likely\nStep 2: (B)\nStep 3: very unlikely"}
    result, _ = run(tmp_path, lambda chat: replies.get(chat.id, ""), prompt="text_at_once")
    assert result.scores["unparsed"]["pairs"] == 5
    # Gold of event 0 is more, equally, less; predicted are equally, more, less.
    assert result.scores["confusion"] == [[3, 0, 1], [1, 1, 0], [2, 0, 0]]
