"""CQA: which raw rows become which samples."""

from __future__ import annotations

from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from tests.data_builders.reading import read, replace, steps


def test_cqa_asks_for_the_cause_and_for_what_would_not_be_without_it(raw: Path) -> None:
    test = read(raw, "cqa")["test"]
    without = "What would not be the case if it were not for the fact that prices rose?"
    assert [(sample.relation, sample.question, sample.answers) for sample in test.rows] == [
        ("causal", "Why is it that sales fell?", ["Prices rose"]),
        ("counterfactual", without, ["sales fell", "profit fell"]),
        ("causal", "Why is it that profit fell?", ["Prices rose"]),
    ]
    assert steps(test) == {
        "no blank side": (5, 4),
        "sides of one piece": (4, 3),
        "two different sides": (3, 2),
        "whole phrases": (2, 2),
        "well-formed questions": (4, 4),
        "one sample for each question": (4, 3),
    }


def test_cqa_reads_the_converted_training_file(raw: Path) -> None:
    train = read(raw, "cqa")["train"]
    assert [(sample.relation, sample.question, sample.answers) for sample in train.rows] == [
        ("causal", "What could halt work?", ["a strike"]),
        ("causal", "What could a strike do?", ["halt work"]),
    ]
    assert steps(train)["passages of the test"] == (4, 3)


def test_cqa_finds_spans_in_decoded_passages(raw: Path) -> None:
    replace(raw / "cqa/reconstruct_rl/train.json", "Firms say a strike", "A&amp;B say a strike")
    first = read(raw, "cqa")["train"].rows[0]
    assert first.context == "A&B say a strike could halt work."
    assert first.meta["decoded"] == ["HTML entities"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[[0, 12]]", "[[0, 99]]", r"labelData.0.reason: got \[0, 99\]; expected positions in the passage of 44"),
        ("[[0, 12]]", "[[0]]", r"labelData.0.reason: got \[0\]; expected \[start, end\]"),
        ("[[0, 12]]", "7", "labelData.0.reason: got 7; expected a list"),
        ('"type": "cause"', '"type": "causes"', "labelData.0.type: got 'causes'; expected one of"),
        ('"labelData"', '"labels"', "labelData: missing; expected a list of objects"),
    ],
)
def test_cqa_names_file_item_and_field_of_a_bad_row(raw: Path, old: str, new: str, message: str) -> None:
    replace(raw / "cqa/raw/event_dataset_test.json", old, new)
    with pytest.raises(UserError, match=rf"event_dataset_test\.json, item 1: {message}"):
        read(raw, "cqa", ("test",))


def test_cqa_names_the_item_of_a_converted_row_that_does_not_parse(raw: Path) -> None:
    replace(raw / "cqa/reconstruct_rl/train.json", "[Relation] prevent", "[Relation] hinder")
    with pytest.raises(UserError, match=r"train\.json, item 2: context: got 'hinder'; expected one of"):
        read(raw, "cqa")
