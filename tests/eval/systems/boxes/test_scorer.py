"""Accuracy by hand, and the random baseline."""

from __future__ import annotations

from pathlib import Path

from eval.systems.boxes.gold import read_questions
from eval.systems.boxes.scorer import candidates, plot, score, tables
from tests.eval.systems.boxes.rows import ROWS, save


def test_accuracy_is_counted_by_operations_and_change_and_a_state_needs_all_its_boxes(tmp_path: Path) -> None:
    questions = read_questions(save(tmp_path / "test.jsonl", ROWS), split="test")
    #  state 0: right, right, right;  state 1: right, wrong (as at the start), unread
    predictions = ["cup", "the pen, the hat", "nothing", "is empty", "the hat and the pen", None]
    baseline = ["the cup", "nothing", "nothing", "the cup", "the pen", "the hat"]
    scores = score(questions, predictions, baseline, boxes=3, seed=0)
    assert scores["accuracy"]["mean"] == 4 / 6
    assert scores["accuracy_changed"]["mean"] == 1 / 3
    assert scores["accuracy_unchanged"]["mean"] == 1
    assert scores["state_accuracy"]["mean"] == 1 / 2
    assert scores["baseline_accuracy"]["mean"] == 4 / 6
    assert scores["unparsed"] == 1 / 6
    assert [(row["numops"], row["changed"], row["n"], row["accuracy"]["mean"]) for row in scores["by_numops"]] == [
        (1, True, 3, 1 / 3),
        (0, False, 3, 1.0),
    ]
    main, detail = tables(scores)
    assert [row[:2] for row in main.rows] == [
        ("all questions", "6"),
        ("changed boxes", "3"),
        ("unchanged boxes", "3"),
        ("whole states", "2"),
    ]
    assert detail.rows[0][:3] == ("1", "yes", "3")
    assert "random baseline" in plot(scores)
    assert plot(scores) == plot(scores)


def test_the_random_baseline_draws_from_the_clauses_that_name_the_box(tmp_path: Path) -> None:
    questions = read_questions(save(tmp_path / "test.jsonl", ROWS), split="test")
    assert [candidates(question) for question in questions[3:]] == [["cup"], ["hat", "pen"], ["hat"]]
