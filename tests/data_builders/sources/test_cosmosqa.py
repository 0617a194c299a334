"""Cosmos QA: which raw rows become which samples."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from tests.data_builders.raw_rows import COSMOSQA_INSTRUCTIONS
from tests.data_builders.reading import read, replace, steps, use_substitute

INSTRUCTIONS = "cosmosqa/subtask024_cosmosqa_answer_generation.json"


def test_cosmosqa_sorts_questions_by_the_letters_if(raw: Path) -> None:
    relations = [sample.relation for sample in read(raw, "cosmosqa")["test"].rows]
    assert relations == ["causal", "causal", "counterfactual", "causal"]  # "different" is seen, a capital "If" is not


def test_cosmosqa_can_look_for_the_word_if(raw: Path) -> None:
    relations = [sample.relation for sample in read(raw, "cosmosqa", ("test",), "rule=word")["test"].rows]
    assert relations == ["causal", "causal", "causal", "counterfactual"]


def test_cosmosqa_keeps_repeated_questions_under_ids_of_their_own(raw: Path) -> None:
    samples = read(raw, "cosmosqa")["test"].rows
    assert [sample.id for sample in samples] == [f"cosmosqa-test-{line}" for line in (2, 4, 6, 7)]
    assert [sample.answers[0] for sample in samples[:2]] == ["He was late .", 'He said , " come " .']


def test_cosmosqa_trains_on_new_stories_with_four_different_answers(raw: Path) -> None:
    train = read(raw, "cosmosqa")["train"]
    assert [sample.question for sample in train.rows] == ["What if Max had stayed ?"]
    assert list(steps(train).values()) == [(4, 3), (3, 2), (2, 1)]


def test_cosmosqa_draws_wrong_answers_from_other_stories(raw: Path) -> None:
    use_substitute(raw, "cosmosqa/train.csv", INSTRUCTIONS)
    places = set()
    for seed in range(5):
        train = read(raw, "cosmosqa", seed=seed)["train"]
        assert steps(train) == {"contexts of the test": (21, 20), "no blank answer": (20, 20)}
        for sample in train.rows:
            number = int(sample.question.split()[-2])
            assert sample.answers == [f"It is {number} ."]
            others = {int(option.split()[-2]) // 2 for option in sample.options if option != sample.answers[0]}
            assert number // 2 not in others
            places.add(sample.options.index(sample.answers[0]))
    assert places == {0, 1, 2, 3}


def test_cosmosqa_draw_depends_on_the_seed_only(raw: Path) -> None:
    use_substitute(raw, "cosmosqa/train.csv", INSTRUCTIONS)
    drawn = [[s.options for s in read(raw, "cosmosqa", seed=seed)["train"].rows] for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_cosmosqa_says_when_there_is_too_little_to_draw_from(raw: Path) -> None:
    few = {**COSMOSQA_INSTRUCTIONS, "Instances": [{"input": "Context: A . \nQuestion: B ?", "output": ["C ."]}]}
    (raw / "cosmosqa/train.csv").unlink()
    (raw / INSTRUCTIONS).write_text(json.dumps(few))
    with pytest.raises(UserError, match="its 1 questions have too few answers to draw wrong ones from"):
        read(raw, "cosmosqa")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (",1\r\n", ",4\r\n", r"line 2: label: got '4'; expected one of \['0', '1', '2', '3'\]"),
        ("Why did Tom leave ?", "", "line 2: question: got ''; expected text"),
        (",label", ",lable", "line 1: column 'label' is missing; found 'id', 'context'"),
        ("t-3,I met Jo .", "t-3,I met, Jo .", "line 7: got 9 columns; expected 8"),
    ],
)
def test_cosmosqa_names_file_line_and_field_of_a_bad_row(raw: Path, old: str, new: str, message: str) -> None:
    replace(raw / "cosmosqa/valid.csv", old, new)
    with pytest.raises(UserError, match=rf"valid\.csv, {message}"):
        read(raw, "cosmosqa", ("test",))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("Context: I met", "Story: I met", "item 1: input: got .* expected 'Context: <story>'"),
        ('"output": ["Nothing ."]', '"output": []', r"item 1: output: got \[\]; expected at least one answer"),
        ('"Instances"', '"Rows"', "line 1: the JSON object has Title, Definition, Rows, Examples; expected an array"),
    ],
)
def test_cosmosqa_names_what_is_wrong_in_the_rendering(raw: Path, old: str, new: str, message: str) -> None:
    use_substitute(raw, "cosmosqa/train.csv", INSTRUCTIONS)
    replace(raw / INSTRUCTIONS, old, new)
    with pytest.raises(UserError, match=message):
        read(raw, "cosmosqa")
