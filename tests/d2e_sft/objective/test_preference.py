"""`prefer` equals each form's formula, one forward per answer, in every layout and however a batch is cut."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from d2e_sft.config.recipe import D2ESection
from d2e_sft.model.collation import model_inputs
from d2e_sft.model.packing_support import Layout, choose_layout, collator_for
from d2e_sft.objective import attach
from d2e_sft.objective.attach import attach_objective
from d2e_sft.objective.preference import FORMS, PAIR_MEANS
from d2e_sft.objective.reference import REFERENCE, Reference
from d2e_sft.train.config import D2EConfig
from d2e_sft.train.trainer import D2ETrainer
from tests.naive import gradients_of
from tests.naive_pairs import CONFIGS, SGD, changed, naive, pair_rows, step
from tests.tiny import tiny_model


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("D2E_CACHE", str(tmp_path / "cache"))


def assert_equal_to_naive(model: Any, config: D2ESection, layout: Layout | None, packing: Any = "auto") -> None:
    rows, reference = pair_rows(config), copy.deepcopy(model)
    layout = layout or choose_layout(model, config, packing)
    if config.needs_reference:
        found = Reference.of(config, model, layout).log_probabilities(config, rows, batch_size=2)
        rows = [{**row, REFERENCE: values} for row, values in zip(rows, found, strict=True)]
    attach_objective(model, config, through_logits=layout.through_logits)
    trained = copy.deepcopy(reference)
    for one in (model, trained):
        changed(one)
    inputs = model_inputs(collator_for(layout, config, model.config)(rows))
    sums = model(**inputs)
    loss = sums["loss"] / len(inputs["targets"])
    expected = naive(trained, reference, rows, config)
    loss.backward()
    expected["loss"].backward()
    assert loss.item() == pytest.approx(expected["loss"].item(), rel=1e-5)
    assert sums["preference"].item() / 3 == pytest.approx(expected["preference"].item(), rel=1e-5)
    for name, value in expected.items():
        if "/" in name:
            assert sums[name].item() / 3 == pytest.approx(value, rel=1e-5, abs=1e-5), name
    theirs = gradients_of(trained)
    for name, gradient in gradients_of(model).items():
        if theirs[name].norm() > 1e-4:
            assert (gradient - theirs[name]).norm() <= 1e-5 * theirs[name].norm(), name


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("packing", ["shared_batch", "shared_prefix", "batched"])
def test_every_form_equals_its_formula_in_every_layout(packing: str, config: D2ESection) -> None:
    assert_equal_to_naive(tiny_model("qwen2", seed=3).double(), config, None, packing)


@pytest.mark.parametrize("form", ["dpo", "orpo"])
@pytest.mark.parametrize("kind", ["t5", "mamba", "gemma3"])
def test_models_that_are_not_packed_and_tied_heads_too(kind: str, form: str) -> None:
    assert_equal_to_naive(tiny_model(kind, seed=3).double(), CONFIGS[form], None)


@pytest.mark.parametrize("form", FORMS)
def test_chunks_of_answer_tokens_change_nothing(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attach, "CHUNK_ELEMENTS", 7 * 260)  # chunks cut answers
    assert_equal_to_naive(tiny_model("llama", seed=3).double(), CONFIGS[form], None)


@pytest.mark.parametrize("form", ["dpo", "orpo"])
@pytest.mark.parametrize(
    "cut",
    [
        {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 10},
        {"per_device_train_batch_size": 5, "gradient_accumulation_steps": 2},
        {"micro_batch_tokens": 200, "batch_size": 10},
        {"micro_batch_tokens": 200, "batch_size": 10, "packing": "batched"},
    ],
    ids=["one row", "five rows", "tokens", "tokens, padded"],
)
def test_a_step_does_not_depend_on_how_its_rows_are_cut(tmp_path: Path, form: str, cut: dict[str, Any]) -> None:
    config, rows = CONFIGS[form], pair_rows(count=10)
    whole, log = step(tmp_path, config, rows)
    other, cut_log = step(tmp_path, config, rows, **cut)
    torch.testing.assert_close(other, whole, rtol=1e-4, atol=1e-5 * whole.abs().max().item())
    assert log["loss"] == pytest.approx(config.sft_weight * log["ce"] + log["preference"], rel=1e-5)
    # Before the first step rewards by a reference are 0 but for rounding, so which of two is higher means nothing.
    means = [name for name in PAIR_MEANS if name != "rewards/accuracies" or form == "orpo"]
    for name in ("loss", "ce", "preference", *means, "plain_accuracy"):
        assert cut_log[name] == pytest.approx(log[name], rel=1e-4, abs=1e-6), name


def test_the_head_gets_its_gradient_in_bfloat16(tmp_path: Path) -> None:
    """Autocast keeps a cast weight; one that was cast without gradient must not be used again."""
    moved = {precision: step(tmp_path, CONFIGS["dpo"], pair_rows(), bf16=precision)[0] for precision in (False, True)}
    exact, rounded = moved[False], moved[True]
    assert (exact - rounded).norm() < 0.1 * exact.norm()


def test_held_out_rows_have_the_same_values_in_any_batch(tmp_path: Path) -> None:
    rows, values = pair_rows(count=10), []
    for size in (1, 4, 10):
        args = D2EConfig(str(tmp_path), **{**SGD, **CONFIGS["ipo"].model_dump()}, per_device_eval_batch_size=size)
        trainer = D2ETrainer(tiny_model(seed=3), args, train_dataset=rows, eval_dataset=rows)
        changed(trainer.model)
        values.append(trainer.evaluate())
    with torch.no_grad():
        expected = naive(changed(tiny_model(seed=3).double()), tiny_model(seed=3).double(), rows, CONFIGS["ipo"])
    for found in values:
        for name in ("loss", "preference", *PAIR_MEANS):
            assert found[f"eval_{name}"] == pytest.approx(float(expected[name]), rel=2e-3, abs=1e-4), name
            assert found[f"eval_{name}"] == pytest.approx(values[0][f"eval_{name}"], rel=1e-4, abs=1e-6), name


def test_the_first_step_has_no_reward_yet_and_a_log_has_trls_names(tmp_path: Path) -> None:
    _, log = step(tmp_path, CONFIGS["dpo"], pair_rows())
    assert log["rewards/margins"] == pytest.approx(0, abs=1e-4)
    assert log["preference"] == pytest.approx(math.log(2), rel=1e-3)
    assert {"rewards/chosen", "rewards/rejected", "rewards/accuracies", "logps/chosen", "logps/rejected"} <= log.keys()
