"""Curves of a training as its log has them, and which charts there are: losses that cannot be compared are apart."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from d2e_sft.util.errors import UserError
from eval.compare.compare import compare_runs
from eval.compare.runs import load_runs
from eval.pages.report.facts import Training, curves, read_training
from eval.pages.report.plots import score_dots
from tests.factories import choice, make_run

LOG = [{"step": step, "loss": 2.0 / step, "ce": 1.0 / step, "plain_accuracy": step / 4} for step in (1, 2, 3)]


def logged(folder: Path, log: list[dict[str, Any]]) -> Training:
    folder.mkdir(exist_ok=True)
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": log}))
    return read_training(folder)


def trained(folder: Path, d2e: str, **changes: float) -> Training:
    folder.mkdir()
    (folder / "recipe.yaml").write_text(f"data: {{train: x}}\ntrain: {{output_dir: x}}\nd2e: {{{d2e}}}\n")
    return logged(folder, [{**entry, **{key: entry[key] + more for key, more in changes.items()}} for entry in LOG])


def test_scores_have_one_chart_with_a_row_a_group(tmp_path: Path) -> None:
    rows = [choice(n, n % 2 == 0, dataset=name) for n, name in enumerate("aabb")]
    chart = score_dots(compare_runs(load_runs([make_run(tmp_path / "run", rows)])))
    assert "Dots on one axis: Mean of EM and F1 of run, with 95 % intervals" in chart


def test_losses_of_other_terms_are_drawn_apart(tmp_path: Path) -> None:
    sft = trained(tmp_path / "sft", "objective: sft")
    d2e, same = (trained(tmp_path / name, "objective: d2e, alpha: 0.5") for name in ("d2e", "same"))
    weak = trained(tmp_path / "weak", "objective: d2e, alpha: 0.2")
    assert [one.terms for one in (sft, d2e, weak)][:2] == ["sft", "d2e, alpha 0.5, kl_weight 1.0"]
    charts = curves(["sft", "d2e", "same", "weak"], [sft, d2e, same, weak])
    found = [str(chart).partition("over training steps: ")[2].partition('"')[0] for chart in charts]
    assert [title.rpartition(" of ")[2] for title in found] == [
        "sft", "d2e, same", "weak",  # loss
        "sft", "d2e, same", "weak",  # cross-entropy
        "sft, d2e, same, weak",  # an accuracy is one, however it was trained
    ]  # fmt: skip
    assert found[1].startswith("Loss (d2e, alpha 0.5")


def test_a_loss_that_is_nothing_but_its_cross_entropy_is_drawn_once(tmp_path: Path) -> None:
    training = trained(tmp_path / "sft", "objective: sft", ce=0.0)
    same = Training({"loss": [(1, 2.0)], "ce": [(1, 2.0)]}, {}, 1, None)
    assert len(curves(["a"], [same])) == 1
    assert len(curves(["a"], [training])) == 3


def test_plain_sft_has_a_loss_and_an_accuracy_and_no_empty_curve(tmp_path: Path) -> None:
    entry = {"loss": 0.5, "ce": 0.5000001, "kl": 0.0, "plain_accuracy": 0.9, "debiased_accuracy": 0.9}
    sft = logged(tmp_path / "sft", [{"step": step, **entry} for step in (1, 2)])
    charts = " ".join(curves(["plain"], [sft]))
    assert re.findall("steps: (.*?) of plain", charts) == ["Loss", "Plain token accuracy"]
    d2e = logged(tmp_path / "d2e", [{"step": 1, **entry, "kl": 0.2, "debiased_accuracy": 0.8}])
    assert {"kl", "debiased_accuracy"} < d2e.curves.keys()


def test_curves_skip_values_that_are_no_numbers(tmp_path: Path) -> None:
    history = [{"step": 2, "loss": 1.0}, {"step": 1, "loss": float("nan"), "kl": "inf"}, {"step": 3, "eval_loss": 1}]
    training = logged(tmp_path, history)
    assert training.curves == {"loss": [(2, 1.0)]}
    assert training.steps == 3
    assert training.tokens_per_second is None


def test_curves_of_held_out_samples_stand_beside_those_of_training(tmp_path: Path) -> None:
    history = [{"step": 1, "loss": 3.0}, {"step": 2, "loss": 2.0}, {"step": 2, "eval_loss": 2.5, "eval_ce": 2.4}]
    training = logged(tmp_path, history)
    assert training.held_out == {"loss": [(2, 2.5)], "ce": [(2, 2.4)]}
    loss, ce = curves(["mine"], [training])
    assert "of mine, mine, held out" in loss
    assert "of mine, held out" in ce


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"log_history": [1]}'])
def test_a_damaged_trainer_state_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "trainer_state.json").write_text(content)
    with pytest.raises(UserError, match=r"trainer_state\.json"):
        read_training(tmp_path)
