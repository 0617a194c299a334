"""Questions and answers as files, what is asked, and how replies are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eval.systems.wiqa.questions import label_of
from eval.systems.wiqa.system import MOST_SHOTS, WIQA, WiqaOptions, WiqaScoreOptions
from tests.eval.systems.files import save
from tests.eval.systems.wiqa.files import QUESTIONS, read_questions


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ({"id": "q1", "answer": "Less"}, "less"),
        ({"ques_id": "q1", "answer": "no effect"}, "no_effect"),
        ({"ques_id": "q1", "answer": "A"}, "more"),
        ({"explanation": {"de": "NOT_RESULTS_IN"}, "orig_question": {"metadata": {"ques_id": "q1"}}}, "less"),
        ({"metadata": {"ques_id": "q1"}, "answer_label": "no_effect"}, "no_effect"),
    ],
)
def test_lines_of_ours_and_of_the_official_evaluator_are_read(tmp_path: Path, line: Any, answer: str) -> None:
    paths = save(tmp_path / "p.jsonl", [line]), save(tmp_path / "gold.jsonl", QUESTIONS)
    scores = WIQA.score(*paths, WiqaScoreOptions(missing="leave_out")).scores
    assert scores["counts"]["predicted"][answer] == 1
    assert scores["missing"] == 5


def test_labels_have_the_official_names() -> None:
    assert {label_of(name) for name in ("RESULTS_IN", "correct effect", "+", "MORE")} == {"more"}
    assert {label_of(name) for name in ("opposite", "NOT_RESULTS_IN", "-", "b")} == {"less"}
    assert {label_of(name) for name in ("NO_EFFECT", "no effect", "none")} == {"no_effect"}
    assert label_of("moreover") is None


def test_the_published_file_has_its_counts(wiqa_raw: Path) -> None:
    questions = read_questions(wiqa_raw)
    assert len(questions) == 3_003
    assert len({one.paragraph for one in questions}) == 41
    assert len({one.graph for one in questions}) == 230
    assert all(one.cause and one.effect for one in questions)


def test_prompts_list_the_steps_and_the_imagined_view_has_none(tmp_path: Path) -> None:
    question = read_questions(save(tmp_path / "q.jsonl", QUESTIONS))[1]
    chat = WIQA.conversation(question, WiqaOptions(shots=MOST_SHOTS))
    assert [message["role"] for message in chat.messages] == ["system", *["user", "assistant"] * 3, "user"]
    assert [message["content"] for message in chat.messages[2::2]] == ["more", "less", "no effect"]
    told = chat.messages[-1]["content"]
    assert "1. Rain falls on the hill\n2. Water runs down the hill\n3. The pond fills\n" in told
    assert question.stem in told
    assert chat.imagined[:-1] == chat.messages[:-1]
    assert question.stem in chat.imagined[-1]["content"]
    assert "The pond fills" not in str(chat.imagined)
    ablation = WIQA.conversation(question, WiqaOptions(shots=1, paragraph="no"))
    assert ablation.messages == ablation.imagined
    assert ablation.imagined == WIQA.conversation(question, WiqaOptions(shots=1)).imagined


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
    assert WIQA.read_answer(reply, None) == answer
