"""Samples beyond the positions of a model."""

from __future__ import annotations

import datasets
import pytest

from d2e_sft.model.positions import check_positions
from d2e_sft.util.errors import UserError
from tests.tiny import tiny_model


def _rows(longest: int) -> datasets.Dataset:
    row = {"original": [5] * (longest - 3), "imagined": [5, 6], "answer": [7, 8, 1]}
    return datasets.Dataset.from_list([row, {**row, "original": [5]}])


def test_a_sample_longer_than_a_table_of_positions_is_refused() -> None:
    config = tiny_model("gpt2").config
    check_positions(config, _rows(1024))
    with pytest.raises(UserError, match=r"the longest sample has 1025 tokens[\s\S]*data.max_length=1024"):
        check_positions(config, _rows(1025))


def test_a_sample_beyond_what_rotary_positions_were_trained_on_is_a_warning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = tiny_model("llama").config
    check_positions(config, _rows(1024))
    assert not capsys.readouterr().err
    check_positions(config, _rows(1025))
    assert "1025 tokens" in capsys.readouterr().err
