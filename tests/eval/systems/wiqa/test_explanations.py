"""The official evaluator's scores of explanations, by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eval.systems.wiqa.system import WIQA, WiqaScoreOptions
from tests.eval.systems.wiqa.files import QUESTIONS, save_lines

GOLD = {
    "q1": {"di": "RESULTS_IN", "dj": "RESULTS_IN", "de": "RESULTS_IN", "i": 0, "j": 1},
    "q2": {"di": "RESULTS_IN", "dj": "RESULTS_IN", "de": "RESULTS_IN", "i": 0, "j": 1},
    "q3": {"di": "NOT_RESULTS_IN", "dj": "NOT_RESULTS_IN", "de": "NOT_RESULTS_IN", "i": 0, "j": 1},
    "q6": {"di": None, "de": "NO_EFFECT", "i": None, "j": None},
}
SAID: list[dict[str, Any]] = [
    # The official evaluator's line, right in all four.
    {
        "orig_question": {"metadata": {"ques_id": "q1"}},
        "explanation": {"de": "RESULTS_IN", "di": "RESULTS_IN", "i": 0, "j": 1},
    },
    # The wrong answer by the right sentences; the direction is wrong.
    {"ques_id": "q2", "answer": "less", "explanation": {"di": "less", "i": 0, "j": 1}},
    # Another second sentence.
    {"ques_id": "q3", "answer": "less", "explanation": {"di": "less", "i": 0, "j": 2}},
    {"ques_id": "q4", "answer": "more"},
    {"ques_id": "q6", "answer": "no effect"},
]


def explained() -> list[dict[str, Any]]:
    names = [row["metadata"]["ques_id"] for row in QUESTIONS]
    return [
        row | ({"explanation": GOLD[name]} if name in GOLD else {}) for name, row in zip(names, QUESTIONS, strict=True)
    ]


def test_the_four_shares_overall_and_by_type(tmp_path: Path) -> None:
    paths = save_lines(tmp_path / "p.jsonl", SAID), save_lines(tmp_path / "gold.jsonl", explained())
    result = WIQA.score(*paths, WiqaScoreOptions(missing="leave_out"))
    found = result.scores["explanations"]
    assert [found[name] for name in ("EQDIR", "XDIR", "XSENTID", "YSENTID")] == [3 / 4, 3 / 4, 1, 3 / 4]
    assert (found["questions"], found["without_gold"], found["without_prediction"]) == (4, 1, 2)
    in_paragraph = found["by_type"]["in-paragraph"]
    assert [in_paragraph[name] for name in ("EQDIR", "XDIR", "XSENTID", "YSENTID")] == [0.5, 0.5, 1, 0.5]
    assert found["by_type"]["no effect"] == {"EQDIR": 1, "XDIR": 1, "XSENTID": 1, "YSENTID": 1, "questions": 1}
    assert "| all " in result.tables[-1].markdown()
    assert "1 questions without a gold one left out, 2 predictions without one" in result.tables[-1].caption


def test_nothing_is_said_of_explanations_where_one_side_has_none(tmp_path: Path) -> None:
    with_, without = save_lines(tmp_path / "gold.jsonl", explained()), save_lines(tmp_path / "plain.jsonl", QUESTIONS)
    answers = save_lines(tmp_path / "a.jsonl", [{"ques_id": "q1", "answer": "more"}])
    options = WiqaScoreOptions(missing="leave_out")
    assert "explanations" not in WIQA.score(answers, with_, options).scores
    assert "explanations" not in WIQA.score(save_lines(tmp_path / "p.jsonl", SAID), without, options).scores
