"""WIQA: which raw rows become which samples."""

from __future__ import annotations

from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from tests.data_builders.reading import read, replace, steps


def test_wiqa_makes_sentences_of_the_steps(raw: Path) -> None:
    samples = read(raw, "wiqa")["test"].rows
    assert {sample.context for sample in samples} == {"Clouds gather. It rains."}
    assert [sample.answers for sample in samples] == [["more"], ["no effect"]]
    assert samples[0].meta["question_type"] == "INPARA_EFFECT"
    assert samples[0].meta["path_len"] == 2


def test_wiqa_trains_on_no_paragraph_of_the_test(raw: Path) -> None:
    train = read(raw, "wiqa")["train"]
    assert [sample.context for sample in train.rows] == ["Wind blows."]
    assert steps(train) == {"paragraphs of the test": (3, 1)}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"answer_label": "more"', '"answer_label": "no effect"', "question.answer_label: got 'no effect'; expected"),
        ('"para_steps": ["Clouds gather", "It rains.", ""]', '"para_steps": [""]', "question.para_steps: got"),
        ('"path_len": 2', '"path_len": "2"', "metadata.path_len: got '2'; expected a whole number"),
        ('"metadata"', '"meta"', "metadata: missing; expected an object"),
        ('"stem": "suppose', '"stem_": "suppose', "question.stem: missing; expected text"),
        ('"para_id"', '"paragraph"', "metadata.para_id: missing; expected text"),
        ('"answer_label": "more"', '"label": "more"', "question.answer_label: missing; expected one of"),
        ('"INPARA_EFFECT"', '"INPARA"', "metadata.question_type: got 'INPARA'; expected one of"),
    ],
)
def test_wiqa_names_file_line_and_field_of_a_bad_row(raw: Path, old: str, new: str, message: str) -> None:
    replace(raw / "wiqa/test.jsonl", old, new)
    with pytest.raises(UserError, match=rf"test\.jsonl, line 1: {message}"):
        read(raw, "wiqa", ("test",))
