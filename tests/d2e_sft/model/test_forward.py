"""A language model called in parts gives what its own forward gives."""

from __future__ import annotations

import pytest
import torch

from d2e_sft.model.attention.registry import BY_BRANCH, register
from d2e_sft.model.forward import head_of, hidden_states, last_logits, packed_states
from d2e_sft.model.packing import pack
from tests.tiny import tiny_model


# A soft cap, a scale, a bias: only plain and scaled heads are linear.
@pytest.mark.parametrize(("kind", "linear"), [("llama", True), ("granite", True), ("gemma3", False), ("phi", False)])
@torch.no_grad()
def test_the_head_of_the_hidden_states_is_the_logits(kind: str, linear: bool) -> None:
    model, ids = tiny_model(kind), torch.tensor([[5, 6, 7, 8], [9, 8, 7, 6]])
    project, is_linear = head_of(model)
    assert is_linear == linear
    torch.testing.assert_close(project(hidden_states(model, input_ids=ids)), model(input_ids=ids).logits)


@pytest.mark.parametrize("kind", ["llama", "mamba"])
@torch.no_grad()
def test_the_last_logits_are_those_of_the_last_positions(kind: str) -> None:
    model, ids = tiny_model(kind), torch.tensor([[5, 6, 7, 8], [9, 8, 7, 6]])
    logits, output = last_logits(model, 2, input_ids=ids)
    torch.testing.assert_close(logits, model(input_ids=ids).logits[:, -2:])
    assert output.logits.shape[1] == 2, "the others were not projected"


@pytest.mark.parametrize("leading", [None, 1])
def test_a_packed_row_has_the_states_of_its_sequences_and_gradient_only_in_its_lead(leading: int | None) -> None:
    prefix, model = list(range(20, 35)), tiny_model()
    sequences = [[*prefix, 5, 6, 7], [*prefix, 9], [3, *prefix]]
    separate = [hidden_states(model, input_ids=torch.tensor([ids]))[0] for ids in sequences]
    register()
    model.set_attn_implementation(BY_BRANCH)
    row = pack([sequences], leading=leading)
    states = packed_states(model, row.forest, torch.tensor([row.tokens]))
    for index, expected in zip(row.indices, separate, strict=True):
        torch.testing.assert_close(states[index], expected, rtol=1e-4, atol=1e-5)
    (gradient,) = torch.autograd.grad(states.sum(), model.model.norm.weight)
    reached = states[: row.forest.lead].detach() / model.model.norm.weight
    torch.testing.assert_close(gradient, reached.sum(dim=0).detach(), rtol=1e-4, atol=1e-4)
