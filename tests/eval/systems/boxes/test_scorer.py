"""Accuracy by hand, and the random baseline."""

from __future__ import annotations

from pathlib import Path

from data_builders.boxes.official import official_rows
from eval.systems.boxes.gold import read_questions
from eval.systems.boxes.scorer import candidates, outcomes, plot, random_answers, score, tables
from tests.eval.systems.boxes.rows import ROWS
from tests.eval.systems.files import save


def test_accuracy_is_counted_by_operations_and_change_and_a_state_needs_all_its_boxes(tmp_path: Path) -> None:
    questions = read_questions(save(tmp_path / "test.jsonl", ROWS), split="test")
    #  state 0: right, right, right;  state 1: by meaning alone right, right, then unread
    predictions = ["cup", "the pen, the hat", "nothing", "is empty", "the Pen", None]
    baseline = ["the cup", "nothing", "nothing", "the cup", "the pen", "the hat"]
    scores = score(outcomes(questions, predictions, baseline), 1, boxes=3, seed=0)
    assert scores["accuracy"]["mean"] == 3 / 6
    assert scores["accuracy_changed"]["mean"] == 0
    assert scores["accuracy_unchanged"]["mean"] == 1
    assert scores["state_accuracy"]["mean"] == 1 / 2
    assert scores["corrected"]["accuracy"]["mean"] == 5 / 6
    assert scores["corrected"]["accuracy_changed"]["mean"] == 2 / 3
    assert scores["corrected"]["state_accuracy"]["mean"] == 1 / 2
    assert scores["baseline_accuracy"]["mean"] == 4 / 6
    assert scores["unparsed"] == 1 / 6
    assert [(row["numops"], row["changed"], row["n"], row["accuracy"]["mean"]) for row in scores["by_numops"]] == [
        (1, True, 3, 0.0),
        (0, False, 3, 1.0),
    ]
    assert [row["corrected"]["mean"] for row in scores["by_numops"]] == [2 / 3, 1]
    main, detail = tables(scores, total=8)
    assert main.caption.startswith("Boxes, 6 of 8 questions:")
    assert [row[:2] for row in main.rows()] == [
        ["all questions", "6"],
        ["changed boxes", "3"],
        ["unchanged boxes", "3"],
        ["whole states", "2"],
    ]
    assert detail.rows()[0][:3] == ["1", "yes", "3"]
    assert "random baseline" in plot(scores)
    assert plot(scores) == plot(scores)


def test_the_random_baseline_draws_from_the_clauses_that_name_the_box(tmp_path: Path) -> None:
    questions = read_questions(save(tmp_path / "test.jsonl", ROWS), split="test")
    assert [candidates(question) for question in questions[3:]] == [["cup"], ["hat", "pen"], ["hat"]]


def test_baseline_answers_are_in_the_words_of_the_file_and_name_things_in_full(tmp_path: Path) -> None:
    rows = [row for split, row in official_rows("ambiref", scenarios=9, seed=0, row_format="t5") if split == "test"]
    questions = read_questions(save(tmp_path / "test.jsonl", rows), split="test")
    drawn = random_answers(questions, seed=0)
    assert all(text == "is empty" or text.startswith("contains the ") for text in drawn)
    assert all(" " in thing for question in questions for thing in candidates(question))
    rows = outcomes(questions, [question.answer for question in questions], drawn)
    scores = score(rows, 0, boxes=7, seed=0)
    assert scores["accuracy"]["mean"] == scores["corrected"]["state_accuracy"]["mean"] == 1
    assert 0.05 < scores["baseline_accuracy"]["mean"] < 0.6
