"""Files of predictions, in the official form and as JSON lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from data_builders.boxes.official import official_rows
from eval.systems.boxes.gold import Question, read_questions
from eval.systems.boxes.predictions import official_tsv, read_predictions, write_predictions
from tests.eval.systems.boxes.rows import MOVED, ROWS, START, save

HEADER = "\ttarget\tprediction\tinput"


@pytest.fixture
def questions(tmp_path: Path) -> list[Question]:
    return read_questions(save(tmp_path / "test.jsonl", ROWS), split="test")


def table(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def test_json_lines_keep_whatever_the_model_wrote(tmp_path: Path, questions: list[Question]) -> None:
    odd = ["the cup\u2028and more", "a\nb", None, "nothing", "", "the hat"]
    path = tmp_path / "p.jsonl"
    path.write_text(write_predictions(questions, odd), encoding="utf-8")
    assert read_predictions(path, questions) == (questions, odd)


@pytest.mark.parametrize("variant", ["base", "altforms", "ambiref"])
@pytest.mark.parametrize("form", ["few_shot", "t5"])
def test_the_official_form_comes_back_as_it_was_written(tmp_path: Path, variant: str, form: str) -> None:
    drawn = official_rows(variant, scenarios=9, seed=0, row_format=form)  # type: ignore[arg-type]
    gold = save(tmp_path / "train.jsonl", [row for split, row in drawn if split == "train"])
    questions = read_questions(gold, split="train")
    texts = [None if number % 7 == 3 else f"{question.answer}, more" for number, question in enumerate(questions)]
    path = tmp_path / "p.tsv"
    path.write_text(official_tsv(questions, texts), encoding="utf-8")
    assert read_predictions(path, questions) == (questions, texts)


def test_the_columns_are_those_of_the_official_script(questions: list[Question]) -> None:
    lines = official_tsv(questions, ["the\tcup\nand", *["nothing"] * 5]).splitlines()
    assert lines[0] == HEADER
    assert lines[1] == f"0\tthe cup\tthe cup and\tDescription: {START}\\nStatement: Box 0 contains"
    assert len(lines) == 7


def test_an_input_may_be_a_whole_prompt_and_the_number_may_be_missing(
    tmp_path: Path, questions: list[Question]
) -> None:
    shown = "Say what is in the boxes. Description: Box 0 contains the saw.\\nStatement: Box 0 contains the saw.\\n"
    path = table(
        tmp_path / "p.tsv",
        HEADER,
        f'7\tthe pen.\tthe pen\t"{shown}Description: {MOVED}\\nStatement: Box 1 contains"',
        f"the cup\tthe hat\tComplete the sentence. It is about boxes. {START} Box 0 contains",
        f"3\tnothing\t\t{MOVED} Box 0 contains .",
    )
    chosen, texts = read_predictions(path, questions)
    assert [question.line for question in chosen] == [1, 4, 5]
    assert texts == ["the hat", None, "the pen"]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (
            f"0\tthe hat\tx\tDescription: {START} Box 0 contains",
            "its target is 'the hat'; line 1 of the gold file has",
        ),
        ("0\tthe cup\tx\tDescription: Box 0 contains the pen. Box 0 contains", "the gold file has no such question"),
        ("0\tthe cup\tx\tWhat is in Box 0?", "its input ends in 'What is in Box 0?'"),
        ("0\tthe cup", "has 2 columns"),
        (f"1\tthe pen\tx\tDescription: {MOVED} Box 1 contains", "line 5 of the gold file is predicted twice"),
    ],
)
def test_a_line_that_does_not_fit_the_gold_file_is_named(
    tmp_path: Path, questions: list[Question], line: str, problem: str
) -> None:
    path = table(tmp_path / "p.tsv", HEADER, f"0\tthe pen\ta\t{MOVED} Box 1 contains", line)
    with pytest.raises(UserError) as caught:
        read_predictions(path, questions)
    assert f"{path}, line 3: " in caught.value.message
    assert problem in caught.value.message


def test_a_file_without_predictions_is_an_error(tmp_path: Path, questions: list[Question]) -> None:
    with pytest.raises(UserError, match="holds 0 predictions"):
        read_predictions(table(tmp_path / "p.tsv", HEADER), questions)
