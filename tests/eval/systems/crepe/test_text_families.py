"""Prompts in plain words that ask after each step anew: what they show, and how answers are compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eval.systems.crepe.demonstrations import load_demonstrations
from eval.systems.crepe.text_families import clause
from tests.eval.systems.crepe.perfect import say_change, say_level, say_okay
from tests.eval.systems.crepe.procedures import BURN, last, run

INDEPENDENT = {"structure": "independent"}


def test_text_asks_for_each_event_after_each_step_as_figure_2_does(tmp_path: Path) -> None:
    _, asker = run(tmp_path, say_level, prompt="text", shots=0)
    ((name, chats),) = asker.passes
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
    _, asker = run(tmp_path, say_okay, prompt="yes_no")
    chat = asker.passes[0][1][1]
    assert [message["role"] for message in chat.messages] == ["system", "user"], "no demonstrations"
    assert last(chat).splitlines() == [
        *("Goal: Make tea", "Context: Start. Boil the water.", "Step: Pour it on the leaves."),
        *("Question: Is it okay that I burn my hand on the kettle?", "Answer:"),
    ]
    assert chat.options == ()
    scored, asker = run(tmp_path, say_okay, prompt="yes_no", by_likelihood=True)
    assert asker.passes[0][1][1].options == ("yes", "no")
    assert scored.scores["confusion"] == [[4, 0, 0], [1, 1, 0], [1, 0, 1]]


def test_self_ask_goes_from_the_state_to_the_event(tmp_path: Path) -> None:
    event = load_demonstrations()[0].events[0]
    for structure, level in (("official", "unlikely"), ("independent", "very unlikely")):
        _, asker = run(tmp_path, say_level, prompt="self_ask", shots=1, structure=structure)
        assert asker.passes[0][1][0].messages[2]["content"].splitlines() == [
            f"Follow up: {event.ask}",
            "Intermediate answer: No.",
            f"Follow up: {event.link}",
            "Intermediate answer: No.",
            f"Answer: {level}",
        ]


def test_gold_states_are_follow_ups_that_are_answered_already(tmp_path: Path) -> None:
    _, asker = run(tmp_path, say_level, prompt="self_ask", entities="gold")
    chats = {chat.id: chat for chat in asker.passes[0][1]}
    assert last(chats["3/event0/step3"]).splitlines()[-4:] == [
        *("Follow up: Is the kettle hot?", "Intermediate answer: No."),
        *("Follow up: Is the tea hot?", "Intermediate answer: No."),
    ]
    assert "kettle: hot" not in last(chats["3/event0/step3"])
    assert last(chats["3/event0/step2"]).splitlines()[-1].startswith("Question:")


def test_independent_likelihoods_are_asked_for_before_the_first_step_too(tmp_path: Path) -> None:
    _, asker = run(tmp_path, say_level, prompt="text", shots=0, **INDEPENDENT)
    chats = asker.passes[0][1]
    assert [chat.id for chat in chats][:5] == [*(f"3/event0/step{n}" for n in range(4)), "3/event1/step0"]
    assert last(chats[0]).splitlines()[:3] == ["Goal: Make tea", "Done so far: (nothing yet)", f"Event: {BURN}"]
    assert "Done so far: Boil the water. Pour it on the leaves.\n" in last(chats[2])


def test_an_independent_chain_of_thought_sees_no_earlier_answer(tmp_path: Path) -> None:
    _, asker = run(tmp_path, say_change, prompt="cot", entities="gold", shots=1, **INDEPENDENT)
    ((_, asked),) = asker.passes
    chats = {chat.id: chat for chat in asked}
    shown = "Boil the water. (the kettle: hot) Pour it on the leaves. Wait an hour. (the kettle: not hot; "
    assert f"Done so far: {shown}the tea: not hot)\n" in last(chats["3/event0/step3"])
    assert "(the lantern: glowing)" in str(chats["3/event0/step3"].messages), "demonstrations show theirs"
    assert "Boil the water." not in str(chats["3/event0/step3"].messages[:-1])


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
