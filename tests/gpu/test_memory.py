"""The loss's memory at a large vocabulary, and the dry run's estimate against what a step takes."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from d2e_sft.bench.train import synthetic_rows
from d2e_sft.config.recipe import D2ESection, TrainSection
from d2e_sft.model.collation import model_inputs
from d2e_sft.model.forward import enable_checkpointing
from d2e_sft.model.packing_support import choose_layout, collator_for
from d2e_sft.objective.attach import CHUNK_ELEMENTS, AttachedObjective
from d2e_sft.objective.chunks import Head, sum_in_chunks
from d2e_sft.objective.objectives import AnswerTokens, Objective
from d2e_sft.train.dry_run.memory import TensorBytes, estimate_memory
from tests.gpu.conftest import Machine

VOCABULARY = 262_144


def held(machine: Machine) -> int:
    """Bytes that the allocator has given out; what earlier tests have left is freed first."""
    gc.collect()
    return torch.cuda.memory_allocated() if machine.on_cuda else 0


def peak_of(machine: Machine, known: Any, act: Any, before: int) -> int:
    """Bytes that an act holds at most: of the allocator on CUDA, beyond `before`, else of living tensors."""
    if machine.on_cuda:
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        act()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with TensorBytes(known) as tensors:
        act()
    return tensors.peak


def test_the_chunked_loss_is_the_whole_one_at_262k_words_in_less_memory(
    machine: Machine, record_property: pytest.RecordProperty
) -> None:
    before = held(machine)
    rows, width = machine.size(1024, 12), machine.size(1152, 16)
    generator = torch.Generator().manual_seed(0)

    def leaves(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(machine.device)

    targets = torch.randint(VOCABULARY, (rows,), generator=generator).to(machine.device)
    head = leaves(VOCABULARY, width) / width**0.5
    start = [leaves(rows, width) for _ in range(3)]
    d2e = D2ESection()
    objective = Objective.of(d2e, VOCABULARY)
    tokens = AnswerTokens(targets, torch.ones_like(targets, dtype=torch.bool))
    results: dict[str, list[torch.Tensor]] = {}

    def run(name: str, chunk_rows: int) -> None:
        weight = head.clone().requires_grad_()
        states = [state.clone().requires_grad_() for state in start]

        def project(hidden: torch.Tensor) -> torch.Tensor:
            return F.linear(hidden, weight)

        views = dict(zip(d2e.views, states, strict=True))
        if name == "whole":
            loss = objective.sums({view: project(state) for view, state in views.items()}, tokens)["loss"]
        else:
            loss = sum_in_chunks(objective, Head(project, [weight], chunk_rows), views, tokens)["loss"]
        loss.backward()
        found: list[Any] = [loss, *(state.grad for state in states), weight.grad]
        results[name] = [one.detach().cpu() for one in found]  # not beside the other's memory

    known = [head, targets, *start]
    chunk_rows = max(1, CHUNK_ELEMENTS // VOCABULARY) if machine.on_cuda else 2
    peaks = {name: peak_of(machine, known, lambda n=name: run(n, chunk_rows), before) for name in ("chunked", "whole")}
    for ours, theirs in zip(results["chunked"], results["whole"], strict=True):
        assert (ours - theirs).norm() <= 1e-4 * theirs.norm()
    record_property("peak_mib", {name: round(peak / 2**20) for name, peak in peaks.items()})
    logits = 4 * rows * VOCABULARY  # of one view
    assert peaks["whole"] - peaks["chunked"] > 2 * logits


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("gradients", ["all", "original"])
def test_the_estimate_is_within_a_fifth_of_what_a_step_allocates(
    machine: Machine, record_property: pytest.RecordProperty, gradients: Any, checkpointing: bool
) -> None:
    before = held(machine)
    model, d2e = machine.model("qwen3-0.6b", layers=8), D2ESection(view_gradients=gradients)
    layout = choose_layout(model, d2e)
    rows = synthetic_rows(machine.size(8, 2), machine.size(400, 40), model.config.vocab_size)
    batch = collator_for(layout, d2e, model.config)(rows)
    precision = "bfloat16" if machine.on_cuda else "float32"
    train = TrainSection(output_dir="x", bf16=precision == "bfloat16", gradient_checkpointing=checkpointing)
    estimate = estimate_memory(model, d2e, layout, batch, train)
    objective = AttachedObjective(model, d2e, layout)
    if checkpointing:
        enable_checkpointing(model)
    inputs = model_inputs(batch, machine.device)
    model.train()
    objective.backward(model, inputs, precision, machine.device)  # leaves gradients in place, and nothing else
    record_property("held_mib", round((held(machine) - before) / 2**20, 1))
    measured = peak_of(
        machine,
        [*model.parameters(), *model.buffers(), *(p.grad for p in model.parameters() if p.grad is not None)],
        lambda: objective.backward(model, inputs, precision, machine.device),
        before,
    )
    expected = estimate.total - estimate.optimizer
    record_property("estimated_mib", round(expected / 2**20, 1))
    record_property("measured_mib", round(measured / 2**20, 1))
    assert measured == pytest.approx(expected, rel=0.2)
