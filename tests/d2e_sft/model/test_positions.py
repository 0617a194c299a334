"""Samples beyond the positions of a model."""

from __future__ import annotations

import pytest

from d2e_sft.model.positions import check_positions
from d2e_sft.util.errors import UserError
from tests.tiny import tiny_model


def test_a_sample_longer_than_a_table_of_positions_is_refused() -> None:
    config = tiny_model("gpt2").config
    check_positions(config, 1024)
    with pytest.raises(UserError, match=r"the longest sample has 1025 tokens[\s\S]*data.max_length=1024"):
        check_positions(config, 1025)


def test_a_sample_beyond_what_rotary_positions_were_trained_on_is_a_warning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = tiny_model("llama").config
    check_positions(config, 1024)
    assert not capsys.readouterr().err
    check_positions(config, 1025)
    assert "1025 tokens" in capsys.readouterr().err
