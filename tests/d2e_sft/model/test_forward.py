"""A language model called in parts gives what its own forward gives."""

from __future__ import annotations

import pytest
import torch

from d2e_sft.model.forward import bare_model, head_of, hidden_states, last_logits
from tests.tiny import tiny_model

IDS = torch.tensor([[5, 6, 7, 8], [9, 8, 7, 6]])


# A soft cap, a scale, a bias: only plain and scaled heads are linear.
@pytest.mark.parametrize(("kind", "linear"), [("llama", True), ("granite", True), ("gemma3", False), ("phi", False)])
@torch.no_grad()
def test_the_head_of_the_hidden_states_is_the_logits(kind: str, linear: bool) -> None:
    model = tiny_model(kind)
    project, is_linear = head_of(model)
    assert is_linear == linear
    torch.testing.assert_close(project(hidden_states(model, input_ids=IDS)), model(input_ids=IDS).logits)


@pytest.mark.parametrize("kind", ["llama", "mamba"])
@torch.no_grad()
def test_the_last_logits_are_the_end_of_all(kind: str) -> None:
    model = tiny_model(kind)
    logits, _ = last_logits(model, 2, input_ids=IDS)
    torch.testing.assert_close(logits, model(input_ids=IDS).logits[:, -2:])


def test_the_bare_model_is_inside_its_adapter() -> None:
    from peft import LoraConfig, get_peft_model

    model = tiny_model()
    assert bare_model(model) is model
    assert bare_model(get_peft_model(model, LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM"))) is model
