"""TempReason: which raw rows become which samples."""

from __future__ import annotations

from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from tests.data_builders.reading import read, replace, steps, use_substitute


def test_tempreason_limits_the_words_of_the_page(raw: Path) -> None:
    assert steps(read(raw, "tempreason")["test"]) == {"context of at most 600 words": (2, 1)}
    assert steps(read(raw, "tempreason", ("test",), "context=facts")["test"]) == {
        "context of at most 600 words": (2, 2)
    }
    rows = read(raw, "tempreason", ("test",), "max_words=none")["test"]
    assert (len(rows.rows), steps(rows)) == (2, {})


def test_tempreason_writes_ordinary_spaces(raw: Path) -> None:
    (sample,) = read(raw, "tempreason", ("test",))["test"].rows
    assert sample.question == "Who was mayor before Zoe Hall?"
    assert sample.answers == ["Ian Wood"]


def test_tempreason_gives_one_line_to_a_fact(raw: Path) -> None:
    sample = read(raw, "tempreason", ("test",), "context=facts")["test"].rows[0]
    assert sample.context.split("\n") == [
        "Ian Wood was mayor from May, 1901 to May, 1903.",
        "Zoe Hall was mayor from May, 1903.",
    ]


def test_tempreason_trains_on_no_entity_and_no_page_of_the_test(raw: Path) -> None:
    train = read(raw, "tempreason")["train"]
    assert [sample.answers for sample in train.rows] == [["Kit Lee"]]
    assert steps(train)["pages of the test"] == (3, 1)


def test_tempreason_reads_timebench_in_place_of_the_test(raw: Path) -> None:
    use_substitute(raw, "tempreason/test_l3.json", "tempreason/event-event_839.jsonl")
    rows = read(raw, "tempreason")
    assert [sample.answers for sample in rows["test"].rows] == [["Ian Wood"]]
    assert steps(rows["train"])["pages of the test"] == (3, 2)  # it has no entities, only pages


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"text": ["Ian Wood"]', '"text": "Ian Wood"', "line 1: text_answers.text: got 'Ian Wood'; expected a list"),
        ('"text": ["Ian Wood"]', '"text": [" "]', "line 1: answer: got .* expected at least one text"),
        ('{"text": ["Ian Wood"]}', "3", "line 1: text_answers: got 3; expected an object"),
        ("L3_Q1_P6_0", "L2_Q1_P6_0", "line 1: id: got 'L2_Q1_P6_0'; expected L3_<entity>"),
        ('"context": "Oakham', '"page": "Oakham', "line 1: context: missing; expected text"),
    ],
)
def test_tempreason_names_file_line_and_field_of_a_bad_row(raw: Path, old: str, new: str, message: str) -> None:
    replace(raw / "tempreason/test_l3.json", old, new)
    with pytest.raises(UserError, match=rf"test_l3\.json, {message}"):
        read(raw, "tempreason", ("test",))
