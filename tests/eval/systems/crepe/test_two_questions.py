"""Two questions about each event and step: their words, and what comes of each pair of answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from d2e_sft.data.chat_template import CUED
from d2e_sft.data.conversation import prompt_turns
from data_builders.sources import SOURCES
from eval.systems.crepe.parse import read_truth
from eval.systems.crepe.system import FAMILIES
from tests.eval.systems.crepe import perfect
from tests.eval.systems.crepe.procedures import BURN, last, run


def test_steps_are_the_context_and_a_demonstration_answers_both_questions(tmp_path: Path) -> None:
    _, asker = run(tmp_path, perfect.say_true_or_false, prompt="two_questions", shots=1)
    ((_, chats),) = asker.passes
    assert [chat.id for chat in chats[:3]] == ["3/event0/step1/more", "3/event0/step1/less", "3/event0/step2/more"]
    assert last(chats[2]).splitlines() == [
        "Context: Boil the water. Pour it on the leaves.",
        f"Question: Is it more likely that {BURN.removesuffix('.')}?",
        "Take it step by step:",
    ]
    assert chats[2].imagined[-1]["content"].startswith("Question: Is it more likely")
    shown = [message["content"] for message in chats[0].messages if message["role"] == "assistant"]
    # The lantern's five steps: it glows after the second and goes out with the last.
    assert [text.rpartition(" ")[2] for text in shown] == [
        *("False", "False"), *("True", "False"), *("False", "False"), *("False", "False"), *("False", "True")
    ]  # fmt: skip
    assert shown[2].splitlines()[:2] == ["#1 Is the lantern glowing?", "yes"]


@pytest.mark.parametrize(
    ("more", "less", "label", "inconsistent"),
    [("True", "False", 2, 0), ("False", "True", 1, 0), ("False", "False", 0, 0), ("True", "True", 0, 8)],
)
def test_answers_that_contradict_each_other_are_no_change(
    tmp_path: Path, more: str, less: str, label: int, inconsistent: int
) -> None:
    said = {"more": more, "less": less}
    result, _ = run(
        tmp_path,
        lambda chat: f"the answer to the original question is {said[chat.id.rpartition('/')[2]]}",
        prompt="two_questions",
    )
    assert [row[label] for row in result.scores["confusion"]] == [sum(row) for row in result.scores["confusion"]]
    assert result.scores["inconsistent"] == inconsistent
    assert result.scores["unparsed"]["pairs"] == 0


@pytest.mark.parametrize(
    ("reply", "truth"),
    [
        ("#1 Is it?\nTrue\nTherefore, the answer to the original question is false.", False),
        ("the answer to the original question is: Yes", True),
        ("#1 Is the answer True?\nyes", None),
    ],
)
def test_the_answer_is_the_one_to_the_original_question(reply: str, truth: bool | None) -> None:
    assert read_truth(reply) is truth


def test_a_model_that_was_trained_on_the_rows_is_asked_in_their_words(tmp_path: Path) -> None:
    source = SOURCES["strategyqa"]
    _, asker = run(tmp_path, perfect.say_true_or_false, prompt="two_questions")
    chat = asker.passes[0][1][0]
    row = prompt_turns(source.prompt, source.system, f"Is it more likely that {BURN.removesuffix('.')}?")
    assert (chat.messages, chat.imagined) == (row.messages("Boil the water."), row.messages(""))
    assert FAMILIES["two_questions"].style == CUED, "as rows are trained on in other forms than chat"
