"""e-CARE: which raw rows become which samples."""

from __future__ import annotations

from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from tests.data_builders.reading import build_datasets, replace


def test_ecare_drops_repeats_and_test_premises_from_train(raw: Path) -> None:
    result, samples = build_datasets(raw, "ecare")
    assert [s.context for s in samples if s.split == "train"] == ["The road was wet."]
    steps = result.splits["ecare", "train"].filters
    assert [(step.rows_in, step.rows_out) for step in steps] == [(3, 2), (2, 1)]


def test_ecare_never_shows_the_explanation(raw: Path) -> None:
    _, samples = build_datasets(raw, "ecare")
    assert not any("Never to be seen" in sample.model_dump_json() for sample in samples)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"label": 0', '"label": 2', r"line 1: label: got 2; expected 0 \(hypothesis1\) or 1"),
        ('"label": 0', '"label": true', "line 1: label: got True"),
        ('"hypothesis1": "It had rained."', '"hypothesis1": " "', "line 1: hypothesis1: got ' '; expected text"),
        (
            '"It had rained."',
            '"Nobody came."',
            "line 1: hypothesis2: got 'Nobody came.'; expected a statement that differs",
        ),
        ('"premise"', '"premisse"', "line 1: premise: missing; expected text"),
        ('"cause"', '"why"', r"line 1: ask-for: got 'why'; expected one of \['cause', 'effect'\]"),
        ("}", "", "line 1: not a JSON object"),
    ],
)
def test_ecare_names_file_line_field_and_value_of_a_bad_row(raw: Path, old: str, new: str, message: str) -> None:
    replace(raw / "ecare/dev_full.jsonl", old, new)
    with pytest.raises(UserError, match=rf"dev_full\.jsonl, {message}"):
        build_datasets(raw, "ecare")
