"""TRL's SFTTrainer beside our engines: the same loss, and the model is left as it was."""

from __future__ import annotations

from typing import Any

import pytest

from d2e_sft.bench import trl_peer
from d2e_sft.bench.engines import ENGINES, SFT, synthetic_rows
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
