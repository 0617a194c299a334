"""ESTER: which raw rows become which samples."""

from __future__ import annotations

from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from tests.data_builders.reading import read, replace, steps, use_substitute


def test_ester_follows_the_types_and_the_letters_if(raw: Path) -> None:
    test = read(raw, "ester")["test"]
    assert [sample.relation for sample in test.rows] == [
        "causal",
        "counterfactual",  # "terrific"
        "causal",  # a capital "If" is not seen
        "counterfactual",
        "subevent_conditional",
        "subevent_conditional",
    ]
    assert steps(test)["relation of PIPER"] == (8, 6)


def test_ester_can_look_for_the_word_if(raw: Path) -> None:
    test = read(raw, "ester", ("test",), "rule=word")["test"]
    relations = [sample.relation for sample in test.rows]
    assert relations == ["causal", "causal", "counterfactual", "counterfactual", *["subevent_conditional"] * 2]


def test_ester_accepts_all_spans_joined_and_each_alone(raw: Path) -> None:
    sample = read(raw, "ester", ("test",))["test"].rows[0]
    assert sample.answers == ["Trees fell; a roof flew off", "Trees fell", "a roof flew off"]
    assert sample.meta["spans"] == ["Trees fell", "a roof flew off"]
    assert sample.meta["type"] == "Causal"


def test_ester_trains_on_new_passages_and_answered_questions(raw: Path) -> None:
    train = read(raw, "ester")["train"]
    assert [sample.answers for sample in train.rows] == [["a spark"]]
    assert list(steps(train).values()) == [(4, 3), (3, 2), (2, 1), (1, 1)]


def test_ester_reads_the_500_where_the_whole_file_is_missing(raw: Path) -> None:
    use_substitute(raw, "ester/final_train_ans_gen.json", "ester/final_train_ans_gen_500completed.json")
    (sample,) = read(raw, "ester")["train"].rows
    assert sample.meta["source"] == "final_train_ans_gen_500completed.json"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"type": "Causal"', '"type": "Casual"', "item 1: type: got 'Casual'; expected one of"),
        ('"answer_texts": [', '"answer_texts": [7,', r"item 1: answer_texts: got \[7, .*; expected a list of texts"),
        ('"question": "What did', '"q": "What did', "item 1: question: missing; expected text"),
    ],
)
def test_ester_names_file_item_and_field_of_a_bad_row(raw: Path, old: str, new: str, message: str) -> None:
    replace(raw / "ester/final_dev_ans_gen.json", old, new)
    with pytest.raises(UserError, match=rf"final_dev_ans_gen\.json, {message}"):
        read(raw, "ester", ("test",))
