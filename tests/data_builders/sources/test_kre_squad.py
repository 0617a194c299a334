"""KRE-SQuAD: the golden and the rewritten passage of a question, and a training split by passage."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from tests.data_builders.reading import read, replace, steps

_FOLDER = Path("conflict/kre-squad")


def test_a_question_has_an_aligned_row_and_a_conflict_row_where_its_passage_is_clear(raw: Path) -> None:
    found = read(raw, "kre_squad", ("test",))["test"]
    assert steps(found) == {
        "four different options": (5, 4),
        "rewritten passages that give their answer": (8, 6),
    }
    assert [(one.id, one.subset, one.answers[0], one.habit) for one in found.rows] == [
        ("kre_squad-test-1-aligned", "aligned", "red", ["red"]),
        ("kre_squad-test-1-conflict", "conflict", "blue", ["red"]),
        ("kre_squad-test-2-aligned", "aligned", "1902", ["1902"]),
        ("kre_squad-test-2-conflict", "conflict", "1901", ["1902"]),
        ("kre_squad-test-3-aligned", "aligned", "red", ["red"]),
        ("kre_squad-test-4-aligned", "aligned", "red", ["red"]),
    ]
    assert {one.relation for one in found.rows} == {"factual"}
    assert found.rows[1].meta["source"] == "squad_negative.json"


def test_no_option_is_told_by_its_blanks(raw: Path) -> None:
    rows = read(raw, "kre_squad", ("test",))["test"].rows
    assert rows[0].options == ["red", "blue", "green", "black,"]


def test_unclear_passages_stay_on_request(raw: Path) -> None:
    rows = read(raw, "kre_squad", ("test",), "unclear=true")["test"].rows
    assert Counter(one.subset for one in rows) == {"aligned": 4, "conflict": 4}


def test_training_rows_are_golden_and_share_no_passage_with_the_test(raw: Path) -> None:
    assert "train" not in read(raw, "kre_squad")
    found = read(raw, "kre_squad", ("train", "test"), "train_share=0.5")
    train, test = found["train"].rows, found["test"].rows
    assert {one.subset for one in train} == {"aligned"}
    # Of three golden passages two are drawn; one of the three has two questions.
    assert len({one.context for one in train}) == 2
    assert not {one.question for one in train} & {one.question for one in test}
    assert {one.id for one in read(raw, "kre_squad", ("train",), "train_share=0.5")["train"].rows} == {
        one.id for one in train
    }


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("squad_golden", '"answer": "red"', '"answer": "pink"', r"item 1: answer: got 'pink'; expected one of the"),
        ("squad_negative", "squad_1", "squad_7", "item 2: id: got 'squad_7'; expected that of item 2 of squad_golden"),
    ],
)
def test_a_bad_row_is_named(raw: Path, file: str, old: str, new: str, message: str) -> None:
    replace(raw / _FOLDER / f"{file}.json", old, new)
    with pytest.raises(UserError, match=message):
        read(raw, "kre_squad", ("test",))


def test_the_published_files_have_the_published_counts(published_raw: Path) -> None:
    if not (published_raw / _FOLDER).is_dir():
        pytest.skip(f"{published_raw} lacks {_FOLDER}")
    rows = read(published_raw, "kre_squad", ("test",))["test"].rows
    assert Counter(one.subset for one in rows) == {"aligned": 1_768, "conflict": 1_595}
    assert not [one for one in rows if one.subset == "aligned" and one.answers != one.habit]
    assert not [one for one in rows if one.subset == "conflict" and one.answers == one.habit]
