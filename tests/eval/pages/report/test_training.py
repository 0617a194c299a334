"""Curves of a training, as its log has them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from eval.pages.report.charts import curves
from eval.pages.report.training import read_training


def test_curves_skip_values_that_are_no_numbers(tmp_path: Path) -> None:
    history = [{"step": 2, "loss": 1.0}, {"step": 1, "loss": float("nan"), "kl": "inf"}, {"step": 3, "eval_loss": 1}]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    training = read_training(tmp_path)
    assert training is not None
    assert training.curves == {"loss": [(2, 1.0)]}
    assert training.steps == 3
    assert training.tokens_per_second is None


def test_curves_of_held_out_samples_stand_beside_those_of_training(tmp_path: Path) -> None:
    history = [{"step": 1, "loss": 3.0}, {"step": 2, "loss": 2.0}, {"step": 2, "eval_loss": 2.5, "eval_ce": 2.4}]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    training = read_training(tmp_path)
    assert training is not None
    assert training.held_out == {"loss": [(2, 2.5)], "ce": [(2, 2.4)]}
    loss, ce = curves(["mine"], [training])
    assert "of mine, mine, held out" in loss
    assert "of mine, held out" in ce


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"log_history": [1]}'])
def test_a_damaged_trainer_state_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "trainer_state.json").write_text(content)
    with pytest.raises(UserError, match=r"trainer_state\.json"):
        read_training(tmp_path)
