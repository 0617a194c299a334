"""What is asked, and how replies are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from eval.systems.wiqa.prompts import conversation, most_shots, read_answer
from eval.systems.wiqa.questions import read_questions
from tests.eval.systems.wiqa.files import QUESTIONS, save_lines


def test_prompts_list_the_steps_and_the_imagined_view_has_none(tmp_path: Path) -> None:
    question = read_questions(save_lines(tmp_path / "q.jsonl", QUESTIONS))[1]
    chat = conversation("wiqa", question, shots=most_shots(), paragraph=True)
    assert [message["role"] for message in chat.messages] == ["system", *["user", "assistant"] * 3, "user"]
    assert [message["content"] for message in chat.messages[2::2]] == ["more", "less", "no effect"]
    told = chat.messages[-1]["content"]
    assert "1. Rain falls on the hill\n2. Water runs down the hill\n3. The pond fills\n" in told
    assert question.stem in told
    assert chat.imagined[:-1] == chat.messages[:-1]
    assert question.stem in chat.imagined[-1]["content"]
    assert "The pond fills" not in str(chat.imagined)
    ablation = conversation("wiqa", question, shots=1, paragraph=False)
    assert ablation.messages == ablation.imagined
    assert ablation.imagined == conversation("wiqa", question, shots=1, paragraph=True).imagined


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("more", "more"),
        ("The effect is less, not more.", "less"),
        ("No effect.", "no_effect"),
        ("no_effect", "no_effect"),
        ("It does not affect it.", "no_effect"),
        ("Rain is more likely here. Answer: less", "less"),
        ("(B)", "less"),
        ("C. because", "no_effect"),
        ("Because of rain", None),
        ("moreover", None),
    ],
)
def test_answers(reply: str, answer: str | None) -> None:
    assert read_answer(reply) == answer
