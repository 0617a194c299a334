"""Story Cloze: which raw rows become which samples."""

from __future__ import annotations

from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from tests.data_builders.reading import read, replace


def test_storycloze_reads_the_file_that_the_user_has(raw: Path) -> None:
    (sample,) = read(raw, "storycloze")["test"].rows
    assert sample.context == "Ann ran. It was icy. She slipped, badly. She fell."
    assert (sample.options, sample.answers) == (["She flew.", "She cried."], ["She cried."])


def test_storycloze_says_where_to_get_the_file(raw: Path) -> None:
    (raw / "ood/storycloze/cloze_test_val__spring2016.csv").unlink()
    with pytest.raises(UserError) as error:
        read(raw, "storycloze")
    assert "cs.rochester.edu/nlp/rocstories" in str(error.value.remedy)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (",2\r\n", ",3\r\n", r"line 2: AnswerRightEnding: got '3'; expected one of \['1', '2'\]"),
        ("She flew.", "She cried.", "line 2: RandomFifthSentenceQuiz2: got 'She cried.'; expected an ending that"),
        ("AnswerRightEnding", "Answer", "line 1: column 'AnswerRightEnding' is missing"),
    ],
)
def test_storycloze_names_file_line_and_field_of_a_bad_row(raw: Path, old: str, new: str, message: str) -> None:
    replace(raw / "ood/storycloze/cloze_test_val__spring2016.csv", old, new)
    with pytest.raises(UserError, match=rf"cloze_test_val__spring2016\.csv, {message}"):
        read(raw, "storycloze")
