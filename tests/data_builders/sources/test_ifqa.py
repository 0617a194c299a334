"""IfQA: which raw rows become which samples."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from tests.data_builders.reading import read, replace, steps


def test_ifqa_joins_the_passages_and_keeps_every_answer_once(raw: Path) -> None:
    sample = read(raw, "ifqa")["test"].rows[0]
    assert (sample.context, sample.answers) == ("First . Second .", ["Rome", "the Romans"])


def test_ifqa_says_a_passage_once(raw: Path) -> None:
    passages = json.dumps(["Rome fell .  Rome fell .", "Second .", "Second ."])
    replace(raw / "ifqa/full_split/test.json", '["First .", "Second ."]', passages)
    assert read(raw, "ifqa")["test"].rows[0].context == "Rome fell . Second ."


def test_ifqa_asks_in_train_what_is_asked_nowhere_else(raw: Path) -> None:
    rows = read(raw, "ifqa", ("train", "dev", "test"))
    assert [sample.question for sample in rows["train"].rows] == ["If C, who?", "If D, who?"]
    assert [sample.question for sample in rows["dev"].rows] == ["If b, Who?"]
    assert len(rows["test"].rows) == 3  # as published, repeats included
    assert list(steps(rows["train"]).values()) == [(5, 5), (5, 3), (3, 2)]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('["First .", "Second ."]', "[]", r"item 1: context: got \[\]; expected at least one passage"),
        ('["First .", "Second ."]', '"First ."', "item 1: context: got 'First .'; expected a list of texts"),
        ('"question": "if a, who?"', '"question": 3', "item 1: question: got 3; expected text"),
    ],
)
def test_ifqa_names_file_item_and_field_of_a_bad_row(raw: Path, old: str, new: str, message: str) -> None:
    replace(raw / "ifqa/full_split/test.json", old, new)
    with pytest.raises(UserError, match=rf"test\.json, {message}"):
        read(raw, "ifqa", ("test",))
