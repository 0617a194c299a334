"""The attention that training would choose."""

from __future__ import annotations

import pytest
import torch

from d2e_sft.doctor import attentions
from tests.d2e_sft.doctor.conftest import named


@pytest.mark.parametrize(("cuda", "agrees", "chosen"), [(False, True, "d2e_by_branch"), (True, True, "d2e_flex"),
                                                        (True, False, "d2e_by_branch")])  # fmt: skip
def test_the_attention_that_training_would_choose_is_named(
    cuda: bool, agrees: bool, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr("d2e_sft.model.attention.flex.flex_agrees", lambda *arguments, **options: agrees)
    found = list(attentions.check_attentions())
    assert named(found, "packed rows").value.startswith(f"this device uses {chosen}")
    assert named(found, "d2e_flex").status == ("ok" if agrees or not cuda else "warn")
    assert "sdpa, eager" in named(found, "transformers").value
