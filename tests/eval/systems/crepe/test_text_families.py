"""Prompts in plain words: what they show, what stays in a dialogue, and how answers are compared."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from eval.systems.crepe.family import load_demonstrations
from eval.systems.crepe.gold import LABELS
from eval.systems.crepe.text_families import clause
from tests.eval.systems.crepe import perfect
from tests.eval.systems.crepe.procedures import BURN, last, run

INDEPENDENT = {"structure": "independent"}


def test_text_asks_for_each_event_after_each_step_as_figure_2_does(tmp_path: Path) -> None:
    _, asker = run(tmp_path, perfect.say_level, prompt="text", shots=0)
    ((name, chats),) = asker.asked.items()
    assert name == "answers"
    assert [chat.id for chat in chats][:4] == [*(f"3/event0/step{n}" for n in (1, 2, 3)), "3/event1/step1"]
    assert len(chats) == 2 * 3 + 2
    question = "Question: What is the likelihood that I burn my hand on the kettle?"
    assert last(chats[0]).splitlines() == ["Goal: Make tea", "Context: Start.", "Step: Boil the water.", question]
    assert "Context: Boil the water. Pour it on the leaves.\nStep: Wait an hour.\n" in last(chats[2])
    assert "Context: (not shown)\nStep: (not shown)\n" in chats[2].imagined[-1]["content"]


def test_the_first_step_is_compared_with_nothing(tmp_path: Path) -> None:
    said = {"3/event0/step1": "unlikely", "3/event0/step2": "likely", "3/event0/step3": "Hm."}
    result, _ = run(tmp_path, lambda chat: said.get(chat.id, "likely"), prompt="text")
    predicted = [
        [row["change"] for row in block if row["type"] == "predicted_event"]
        for block in json.loads(result.files["crepe_predictions.json"])["3"]["steps"][1:]
    ]
    assert predicted == [[], ["more likely"], []]
    assert result.scores["unparsed"]["pairs"] == 1


def test_yes_and_no_are_asked_for_as_of_t5_and_can_be_options(tmp_path: Path) -> None:
    _, asker = run(tmp_path, perfect.say_yes_or_no, prompt="yes_no")
    chat = asker.passes[0][1][1]
    assert [message["role"] for message in chat.messages] == ["system", "user"], "no demonstrations"
    assert last(chat).splitlines() == [
        *("Goal: Make tea", "Context: Start. Boil the water.", "Step: Pour it on the leaves."),
        *("Question: Is it okay that I burn my hand on the kettle?", "Answer:"),
    ]
    assert chat.options == ()
    scored, asker = run(tmp_path, perfect.say_yes_or_no, prompt="yes_no", by_likelihood=True)
    assert asker.passes[0][1][1].options == ("yes", "no")
    assert scored.scores["confusion"] == [[4, 0, 0], [1, 1, 0], [1, 0, 1]]


def test_self_ask_goes_from_the_state_to_the_event(tmp_path: Path) -> None:
    event = load_demonstrations()[0].events[0]
    for structure, level in (("official", "unlikely"), ("independent", "very unlikely")):
        _, asker = run(tmp_path, perfect.say_level, prompt="self_ask", shots=1, structure=structure)
        assert asker.passes[0][1][0].messages[2]["content"].splitlines() == [
            f"Follow up: {event.ask}",
            "Intermediate answer: No.",
            f"Follow up: {event.link}",
            "Intermediate answer: No.",
            f"Answer: {level}",
        ]


def test_gold_states_are_follow_ups_that_are_answered_already(tmp_path: Path) -> None:
    _, asker = run(tmp_path, perfect.say_level, prompt="self_ask", entities="gold")
    chats = {chat.id: chat for chat in asker.passes[0][1]}
    assert last(chats["3/event0/step3"]).splitlines()[-4:] == [
        *("Follow up: Is the kettle hot?", "Intermediate answer: No."),
        *("Follow up: Is the tea hot?", "Intermediate answer: No."),
    ]
    assert "kettle: hot" not in last(chats["3/event0/step3"])
    assert last(chats["3/event0/step2"]).splitlines()[-1].startswith("Question:")


def test_independent_likelihoods_are_asked_for_before_the_first_step_too(tmp_path: Path) -> None:
    _, asker = run(tmp_path, perfect.say_level, prompt="text", shots=0, **INDEPENDENT)
    chats = asker.passes[0][1]
    assert [chat.id for chat in chats][:5] == [*(f"3/event0/step{n}" for n in range(4)), "3/event1/step0"]
    assert last(chats[0]).splitlines()[:3] == ["Goal: Make tea", "Done so far: (nothing yet)", f"Event: {BURN}"]
    assert "Done so far: Boil the water. Pour it on the leaves.\n" in last(chats[2])


def test_gold_states_follow_their_steps_and_an_independent_chain_of_thought_sees_no_earlier_answer(
    tmp_path: Path,
) -> None:
    how = {"prompt": "cot", "entities": "gold", "shots": 1}
    _, dialogue = run(tmp_path, lambda _: "", **how)
    ((_, asked),) = run(tmp_path, perfect.say_change, **how, **INDEPENDENT)[1].passes
    alone = next(chat for chat in asked if chat.id == "3/event0/step3")
    shown = "Boil the water. (the kettle: hot) Pour it on the leaves. Wait an hour. (the kettle: not hot; "
    for chat, name in ((dialogue.passes[2][1][0], "Context"), (alone, "Done so far")):
        assert f"{name}: {shown}the tea: not hot)\n" in last(chat)
        assert "(the lantern: glowing)" in str(chat.messages), "demonstrations show theirs"
    assert "Boil the water." not in str(alone.messages[:-1])


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ("The tea is cold.", "the tea is cold"),
        ("I burn my hand.", "I burn my hand"),
        ("I'm late", "I'm late"),
        ("I’m late.", "I’m late"),
        ("“Stop” is said.", "“Stop” is said"),
        ("TV is on. ", "TV is on"),
        ("A tit moves in.", "a tit moves in"),
    ],
)
def test_an_event_becomes_a_clause(event: str, expected: str) -> None:
    assert clause(event) == expected


@pytest.mark.parametrize("prompt", ["cot", "text_change"])
def test_earlier_answers_stay_in_the_prompt(tmp_path: Path, prompt: str) -> None:
    _, asker = run(tmp_path, perfect.say_change, prompt=prompt, shots=0)
    assert [(name, len(chats)) for name, chats in asker.asked.items()] == [
        ("turn-01", 3),
        ("turn-02", 3),
        ("turn-03", 2),
    ]
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


def test_a_chat_tells_the_steps_turn_by_turn_and_keeps_the_replies(tmp_path: Path) -> None:
    _, asker = run(tmp_path, perfect.say_yes_or_no, prompt="chat")
    assert [(name, len(chats)) for name, chats in asker.asked.items()] == [
        ("turn-01", 3),
        ("turn-02", 3),
        ("turn-03", 2),
    ]
    chat = asker.passes[1][1][0]
    assert [message["role"] for message in chat.messages] == ["system", *["user", "assistant"], "user"]
    assert chat.messages[2]["content"] == "Yes"
    assert "Boil the water." in chat.messages[1]["content"]
    assert "Pour it on the leaves." in last(chat)
    assert "Wait an hour." not in str(chat.messages)


def test_an_independent_chat_begins_before_the_first_step(tmp_path: Path) -> None:
    _, asker = run(tmp_path, perfect.say_yes_or_no_from_the_start, prompt="chat", structure="independent")
    assert [len(chats) for _, chats in asker.passes] == [3, 3, 3, 2]
    chat = asker.passes[2][1][0]
    assert "I have not begun yet." in chat.messages[1]["content"]
    assert [message["content"] for message in chat.messages if message["role"] == "assistant"] == ["No", "Yes"]


def test_one_prompt_an_event_lists_the_steps(tmp_path: Path) -> None:
    _, asker = run(tmp_path, perfect.say_all_levels, prompt="text_at_once", shots=1)
    ((name, chats),) = asker.asked.items()
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
