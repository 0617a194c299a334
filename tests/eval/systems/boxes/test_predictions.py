"""Files of predictions, in the official form and as JSON lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_builders.boxes.official import official_rows
from eval.systems.boxes.gold import Question, read_questions
from eval.systems.boxes.predictions import official_tsv, read_predictions, write_predictions
from tests.eval.systems.boxes.rows import MOVED, ROWS, START
from tests.eval.systems.files import save

HEADER = "\ttarget\tprediction\tinput"


@pytest.fixture
def questions(tmp_path: Path) -> list[Question]:
    return read_questions(save(tmp_path / "test.jsonl", ROWS), split="test")


def test_json_lines_keep_whatever_the_model_wrote(tmp_path: Path, questions: list[Question]) -> None:
    odd = ["the cup\u2028and more", "a\nb", None, "nothing", "", "the hat"]
    path = save(tmp_path / "p.jsonl", write_predictions(questions, odd))
    assert read_predictions(path, questions) == (questions, odd)


@pytest.mark.parametrize("variant", ["base", "altforms", "ambiref"])
@pytest.mark.parametrize("form", ["few_shot", "t5"])
def test_the_official_form_comes_back_as_it_was_written(tmp_path: Path, variant: str, form: str) -> None:
    drawn = official_rows(variant, scenarios=9, seed=0, row_format=form)  # type: ignore[arg-type]
    gold = save(tmp_path / "train.jsonl", [row for split, row in drawn if split == "train"])
    questions = read_questions(gold, split="train")
    texts = [None if number % 7 == 3 else f"{question.answer}, more" for number, question in enumerate(questions)]
    path = save(tmp_path / "p.tsv", official_tsv(questions, texts))
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
    lines = (
        HEADER,
        f'7\tthe pen.\tthe pen\t"{shown}Description: {MOVED}\\nStatement: Box 1 contains"',
        f"the cup\tthe hat\tComplete the sentence. It is about boxes. {START} Box 0 contains",
        f"3\tnothing\t\t{MOVED} Box 0 contains .",
    )
    chosen, texts = read_predictions(save(tmp_path / "p.tsv", "\n".join(lines) + "\n"), questions)
    assert [question.line for question in chosen] == [1, 4, 5]
    assert texts == ["the hat", None, "the pen"]
