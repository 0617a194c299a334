"""TRL's SFTTrainer beside our engines: the same loss, and the model is left as it was."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from d2e_sft.bench import trl_peer
from d2e_sft.bench.engines import ENGINES, PREFERENCE_ENGINES, SFT, synthetic_pairs, synthetic_rows
from d2e_sft.config.recipe import D2ESection
from d2e_sft.model.attention.registry import register
from d2e_sft.util.errors import UserError
from tests.tiny import VOCAB_SIZE, tiny_model


def test_without_trl_the_option_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trl_peer, "find_spec", lambda name: None)
    assert trl_peer.trl_is_missing() == "trl is not installed"
    with pytest.raises(UserError, match="trl is not installed") as error:
        trl_peer.trl_engines("float32")
    assert error.value.remedy == "pip install 'd2e-sft[bench]'"


def test_trl_has_the_loss_and_the_gradients_of_plain_sft_with_and_without_packing() -> None:
    pytest.importorskip("trl")
    model: Any = tiny_model().train()
    rows = synthetic_rows(3, 20, VOCAB_SIZE)
    found = []
    for engine in (ENGINES[0], *trl_peer.trl_engines("float32")):
        model.set_attn_implementation("sdpa")
        model.zero_grad(set_to_none=True)
        loss = engine.loss(model, rows, SFT)
        loss.backward()
        assert "forward" not in vars(model), "TRL's wrapper is not left behind"
        found.append((loss.item(), [parameter.grad.clone() for parameter in model.parameters()]))
    for loss_value, gradients in found[1:]:
        assert loss_value == pytest.approx(found[0][0], rel=1e-5)
        for one, other in zip(gradients, found[0][1], strict=True):
            assert (one - other).norm() <= 1e-4 * other.norm()


def pairs_of_all_lengths() -> list[dict[str, Any]]:
    rows = synthetic_pairs(synthetic_rows(4, 20, VOCAB_SIZE), VOCAB_SIZE)
    return [
        {**row, "answer": row["answer"][: 10 - 2 * i], "rejected": row["rejected"][: 3 + i]}
        for i, row in enumerate(rows)
    ]


def gradients(model: Any, loss: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad(set_to_none=True)
    loss.backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


def assert_equal(model: Any, ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-5)
    for one, other in zip(gradients(model, ours), gradients(model, theirs), strict=True):
        assert (one - other).norm() <= 1e-5 * max(other.norm(), 1e-3)


OURS = next(engine for engine in PREFERENCE_ENGINES if engine.name == "shared_batch")


@pytest.mark.parametrize("sft_weight", [0, 0.7])
@pytest.mark.parametrize("form", ["dpo", "ipo", "hinge"])
def test_prefer_has_the_loss_and_the_gradients_of_trls_dpo_trainer(form: str, sft_weight: float) -> None:
    pytest.importorskip("trl")
    model, rows = tiny_model(seed=3).double().train(), pairs_of_all_lengths()
    d2e = D2ESection.model_validate({"objective": "prefer", "prefer_form": form, "sft_weight": sft_weight})
    (engine,) = trl_peer.trl_engines("float32", prefers=True)
    model.set_attn_implementation("sdpa")
    theirs = engine.loss(model, rows, d2e)
    assert "forward" not in vars(model), "TRL's wrapper is not left behind"
    register()
    model.set_attn_implementation("d2e_by_branch")
    assert_equal(model, OURS.loss(model, rows, d2e), theirs)


@pytest.mark.parametrize("form", ["orpo", "simpo"])
def test_forms_without_a_reference_have_the_loss_and_the_gradients_of_trls_formulas(form: str) -> None:
    pytest.importorskip("trl")
    from trl.experimental.cpo import CPOTrainer
    from trl.experimental.orpo import ORPOTrainer

    model, rows = tiny_model(seed=3).double().train(), pairs_of_all_lengths()
    d2e = D2ESection.model_validate({"objective": "prefer", "prefer_form": form, "sft_weight": 0, "prefer_beta": 0.4})
    answers = [(row["original"], row[name]) for name in ("answer", "rejected") for row in rows]
    width = max(len(prompt) + len(answer) for prompt, answer in answers)
    ids, labels = torch.zeros(8, width, dtype=torch.long), torch.full((8, width), -100)
    for i, (prompt, answer) in enumerate(answers):
        ids[i, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
        labels[i, len(prompt) : len(prompt) + len(answer)] = torch.tensor(answer)
    model.set_attn_implementation("sdpa")
    found = ORPOTrainer.get_batch_logps(model(ids).logits, labels, average_log_prob=True).chunk(2)
    options = {"beta": 0.4, "loss_type": "simpo", "simpo_gamma": 1.0, "alpha": 0.0, "label_smoothing": 0.0}
    trainer = SimpleNamespace(accelerator=SimpleNamespace(device="cpu"), **options)
    if form == "simpo":
        losses = CPOTrainer.cpo_loss(trainer, *found)[0]
    else:
        losses = -ORPOTrainer.odds_ratio_loss(trainer, *found)[0]
    register()
    model.set_attn_implementation("d2e_by_branch")
    ours = OURS.loss(model, rows, d2e) / sum(len(row["answer"]) for row in rows)
    assert_equal(model, ours, losses.mean())
