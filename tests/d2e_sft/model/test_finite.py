"""NaN and infinity in weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from d2e_sft.model.finite import non_finite
from d2e_sft.model.loading import load_model
from d2e_sft.util.errors import UserError
from tests.tiny import save_tiny_model, tiny_model, tiny_tokenizer


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_model_with_one_bad_weight_is_not_loaded(tmp_path: Path, value: float) -> None:
    model = tiny_model("llama")
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 2] = value
    model.save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"the weight model\.layers\.1\.mlp\.up_proj\.weight contains NaN or infinity"):
        load_model(str(tmp_path))


def test_large_and_unusual_weights_are_finite(tmp_path: Path) -> None:
    largest = torch.finfo(torch.float32).max
    weights = [
        ("sums to infinity", torch.full((4, 4), largest)),
        ("half", torch.full((4,), 65504, dtype=torch.float16)),
        ("bfloat16", torch.ones(3, dtype=torch.bfloat16)),
        ("quantised", torch.ones(3, dtype=torch.int8)),
        ("empty", torch.empty(0)),
        ("shape alone", torch.empty(3, device="meta")),
    ]
    assert non_finite(weights) is None
    assert non_finite([*weights, ("bad", torch.tensor([1.0, float("nan")]))]) == "bad"
    load_model(str(save_tiny_model(tmp_path)))
