"""Samples beyond the positions of a model."""

from __future__ import annotations

import pytest

from d2e_sft.model.loading import check_positions
from d2e_sft.util.errors import UserError
from tests.tiny import tiny_model


def test_positions_of_a_table_are_a_limit_and_rotary_ones_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    table, rotary = tiny_model("gpt2").config, tiny_model("llama").config
    check_positions(table, 1024)
    with pytest.raises(UserError, match=r"the longest sample has 1025 tokens[\s\S]*data.max_length=1024"):
        check_positions(table, 1025)
    check_positions(rotary, 1024)
    assert not capsys.readouterr().err
    check_positions(rotary, 1025)
    assert "1025 tokens" in capsys.readouterr().err
