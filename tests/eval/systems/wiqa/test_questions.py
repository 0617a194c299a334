"""Questions and answers as files, and labels by their names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eval.systems.wiqa.questions import label_of, read_questions
from eval.systems.wiqa.system import WIQA, WiqaScoreOptions
from tests.eval.systems.wiqa.files import QUESTIONS, save_lines


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
    paths = save_lines(tmp_path / "p.jsonl", [line]), save_lines(tmp_path / "gold.jsonl", QUESTIONS)
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
