"""Questions and answers as files, and labels by their names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from d2e_sft.util.errors import UserError
from eval.systems.wiqa.questions import label_of, read_questions
from eval.systems.wiqa.system import WIQA, WiqaScoreOptions
from tests.eval.systems.wiqa.files import QUESTIONS, question, save_lines

RIGHT = {row["metadata"]["ques_id"]: row["question"]["answer_label"] for row in QUESTIONS}


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


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            [{"ques_id": "q1", "answer": "perhaps"}],
            "line 1, answer: got 'perhaps'; expected one of more, less, no_effect",
        ),
        ([{"ques_id": "q0", "answer": "more"}], "line 1: question 'q0' is not in the gold file"),
        ([{"answer": "more"}], "line 1: got the fields answer; expected ques_id"),
        ([{"ques_id": "q1"}], "line 1: got the fields ques_id; expected answer"),
        ([{"ques_id": "q1", "answer": "more"}] * 2, "line 2: question 'q1' is answered twice"),
        ([{"ques_id": "q1", "answer": "more"}], r"lacks an answer to 'q2' \(5 of 6 are missing\)"),
        ([], r"lacks an answer to 'q1' \(6 of 6"),
        ([[1]], r"line 1: got \[1\]; expected a JSON object"),
    ],
)
def test_a_damaged_file_of_answers_is_named_with_its_line(tmp_path: Path, lines: Any, message: str) -> None:
    paths = save_lines(tmp_path / "p.jsonl", lines), save_lines(tmp_path / "gold.jsonl", QUESTIONS)
    with pytest.raises(UserError, match=message):
        WIQA.score(*paths, WiqaScoreOptions())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"path_len": "2"}, "line 1, metadata.path_len: got '2'"),
        ({"question_type": "OTHER"}, "line 1, metadata.question_type: got 'OTHER'"),
        ({"graph_id": 7}, "line 1, metadata: graph_id: got 7"),
    ],
)
def test_a_damaged_question_is_named_with_its_line(tmp_path: Path, change: Any, message: str) -> None:
    row = question("q1", "a", "b", "more", "INPARA_EFFECT", 2, **change)
    with pytest.raises(UserError, match=message):
        read_questions(save_lines(tmp_path / "gold.jsonl", [row]))


def test_labels_have_the_official_names() -> None:
    assert {label_of(name) for name in ("RESULTS_IN", "correct effect", "+", "MORE")} == {"more"}
    assert {label_of(name) for name in ("opposite", "NOT_RESULTS_IN", "-", "b")} == {"less"}
    assert {label_of(name) for name in ("NO_EFFECT", "no effect", "none")} == {"no_effect"}
    assert label_of("moreover") is None


def test_the_published_file_has_its_counts(official: Path) -> None:
    questions = read_questions(official)
    assert len(questions) == 3_003
    assert len({one.paragraph for one in questions}) == 41
    assert len({one.graph for one in questions}) == 230
    assert all(one.cause and one.effect for one in questions)
