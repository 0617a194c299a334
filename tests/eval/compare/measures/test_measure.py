"""Measures: what counts, and the file that keeps them."""

from __future__ import annotations

from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from eval.compare.measures.measure import MEASURES_FILE, measure, read_measures, shares, write_measures
from tests.eval.compare.measures.results import accuracy


def test_items_that_count_nothing_are_left_out_and_a_measure_of_nothing_is_none() -> None:
    [found] = measure("changed", "share", "states", "g", {"1": (1, 2), "2": (0, 0)})
    assert found.counts == {"1": (1, 2)}
    assert found.interval.mean == 0.5
    assert measure("changed", "share", "states", "g", {"1": (0, 0)}) == []
    assert shares("accuracy", "questions", "g", {}) == []


def test_what_is_written_is_read_and_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no measures\.json(.|\n)*without decoding"):
        read_measures(tmp_path)
    measures = [*accuracy([1, 0, 0.5]), *accuracy([1, 1, 0], name="other")]
    write_measures(measures, tmp_path)
    assert read_measures(tmp_path) == measures


@pytest.mark.parametrize(
    "text",
    [
        "[",
        "[1]",
        '[{"name": "a", "form": "mean", "unit": "q", "gold": "g", "counts": {"1": [1, 1]}}]',
        '[{"name": "a", "form": "share", "unit": "q", "gold": "g", "counts": {"1": [1, 1], "2": [1]}}]',
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / MEASURES_FILE).write_text(text)
    with pytest.raises(UserError, match=r"measures\.json: not a list of measures"):
        read_measures(tmp_path)
