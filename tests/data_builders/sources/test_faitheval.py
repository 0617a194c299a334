"""FaithEval: the passage's answer against ARC's."""

from __future__ import annotations

from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from tests.data_builders.conflict_rows import ARC_KEYS
from tests.data_builders.reading import read, replace

_FOLDER = Path("conflict/faitheval")
_PASSAGES, _ARC = "faitheval_data.json", "ARC-Challenge-Test.jsonl"


@pytest.mark.parametrize("answers", ["arc", "table"])
def test_the_habit_is_the_answer_of_arc(raw: Path, answers: str) -> None:
    if answers == "table":
        (raw / _FOLDER / _ARC).unlink()
        (raw / _FOLDER / "derived").mkdir()
        (raw / _FOLDER / "derived/original_keys.json").write_text(ARC_KEYS)
    rows = read(raw, "faitheval", ("test",))["test"].rows
    assert [(one.id, one.answers, one.habit, one.subset) for one in rows] == [
        ("faitheval-test-Mercury_1", ["it is old"], ["it is light"], "conflict"),
        ("faitheval-test-NYSEDREGENTS_2", ["it is heavy"], ["it is light"], "conflict"),
    ]


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        (
            "faitheval_data.json",
            '"answer": "it is old"',
            '"answer": "no"',
            "item 1: answer: got 'no'; expected the option",
        ),
        (_PASSAGES, '"answerKey": "D"', '"answerKey": "E"', "item 1: answerKey: got 'E'; expected one of"),
        (
            "ARC-Challenge-Test.jsonl",
            "Mercury_1",
            "Mercury_5",
            "item 1: id: got 'Mercury_1'; expected a question that ARC",
        ),
        (
            "ARC-Challenge-Test.jsonl",
            '"answerKey": "A"',
            '"answerKey": "D"',
            "item 1: id: got 'Mercury_1'; expected a quest",
        ),
        (
            "ARC-Challenge-Test.jsonl",
            '"answerKey": "2"',
            '"answerKey": "B"',
            "line 2: answerKey: got 'B'; expected one of",
        ),
    ],
)
def test_a_bad_row_is_named(raw: Path, file: str, old: str, new: str, message: str) -> None:
    replace(raw / _FOLDER / file, old, new)
    with pytest.raises(UserError, match=message):
        read(raw, "faitheval", ("test",))


def test_the_published_file_has_the_published_counts(published_raw: Path) -> None:
    if not (published_raw / _FOLDER).is_dir():
        pytest.skip(f"{published_raw} lacks {_FOLDER}")
    rows = read(published_raw, "faitheval", ("test",))["test"].rows
    assert len(rows) == 1_000
    places = [one.options.index(one.habit[0]) for one in rows]
    assert [places.count(place) for place in range(4)] == [218, 276, 272, 234]
    assert not [one for one in rows if one.habit == one.answers]
