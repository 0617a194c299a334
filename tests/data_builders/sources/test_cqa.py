"""CQA: which raw rows become which samples."""

from __future__ import annotations

from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from tests.data_builders.reading import read, replace, steps


def test_cqa_asks_for_each_side_of_a_pair_once(raw: Path) -> None:
    test = read(raw, "cqa")["test"]
    assert [(sample.relation, sample.question, sample.answers) for sample in test.rows] == [
        ("causal", "What causes sales fell?", ["Prices rose."]),
        ("counterfactual", "What will happen if Prices rose?", ["sales fell", "profit fell"]),
        ("causal", "What causes profit fell?", ["Prices rose."]),
        ("causal", "What enables profit fell?", ["Prices rose; sales fell"]),
        ("counterfactual", "What will happen if Prices rose and sales fell?", ["profit fell."]),
    ]
    assert list(steps(test).values()) == [(5, 4), (4, 3), (6, 5)]


def test_cqa_reads_the_converted_training_file(raw: Path) -> None:
    train = read(raw, "cqa")["train"]
    assert [(sample.question, sample.answers) for sample in train.rows] == [
        ("What prevents Work?", ["A strike; began"]),
        ("What will be prevented if A strike and began?", ["Work"]),
    ]
    assert steps(train)["passages of the test"] == (3, 2)


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
