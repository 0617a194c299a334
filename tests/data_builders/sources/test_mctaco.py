"""MC-TACO: which raw rows become which samples."""

from __future__ import annotations

from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from tests.data_builders.reading import build_datasets, replace


def test_mctaco_groups_candidates_and_keeps_quotes(raw: Path) -> None:
    _, samples = build_datasets(raw, "mctaco")
    (test,) = [s for s in samples if s.split == "test"]
    assert test.options == ["she spoke", 'she said "stop"', "she left"]
    assert test.answers == ["she spoke", 'she said "stop"']


def test_mctaco_offers_a_repeated_candidate_once(raw: Path) -> None:
    _, samples = build_datasets(raw, "mctaco")
    (train,) = [s for s in samples if s.split == "train"]
    assert train.options == ["it was built", "it fell down"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("\tyes\t", "\tperhaps\t", r"line 1: label: got 'perhaps'; expected one of \['yes', 'no'\]"),
        ("it was built", "", "line 1: answer: got ''; expected text that is not empty"),
        ("\tEvent Ordering", "", "line 1: got 4 tab-separated columns; expected 5"),
        ("Event Ordering", "Event Order", "line 1: category: got 'Event Order'"),
        ("\tyes\t", "\tno\t", "line 1: label: got 'no' on line 1, 'yes' on line 2 for the candidate 'it was built'"),
    ],
)
def test_mctaco_names_file_line_field_and_value_of_a_bad_row(raw: Path, old: str, new: str, message: str) -> None:
    replace(raw / "mctaco/dev_3783.tsv", old, new)
    with pytest.raises(UserError, match=rf"dev_3783\.tsv, {message}"):
        build_datasets(raw, "mctaco")


def test_mctaco_drops_every_candidate_whose_labels_contradict_each_other(raw: Path) -> None:
    replace(raw / "mctaco/test_9442.tsv", "she left\tno", "she spoke\tno")
    result, samples = build_datasets(raw, "mctaco", skip_bad=True)
    (test,) = [s for s in samples if s.split == "test"]
    assert test.options == ['she said "stop"']
    assert result.bad_rows == 2
