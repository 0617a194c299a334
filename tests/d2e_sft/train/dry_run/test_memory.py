"""The memory estimate is compared with what can be counted by hand, and with a real training."""

from __future__ import annotations

import ctypes
import gc
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer, TrainingArguments

from d2e_sft.config.recipe import D2ESection, TrainSection
from d2e_sft.model.device import PeakMemory
from d2e_sft.model.packing_support import choose_layout, collator_for
from d2e_sft.train.dry_run.memory import (
    MemoryEstimate,
    TensorBytes,
    estimate_memory,
    on_each_device,
    optimizer_bytes,
)
from tests.command import program
from tests.naive import encoded_rows
from tests.tiny import tiny_model, with_lora

CPU = torch.device("cpu")


def estimate(
    model: Any, d2e: D2ESection | None = None, *, packing: Any = "auto", count: int = 2, **options: Any
) -> MemoryEstimate:
    d2e = d2e or D2ESection()
    layout = choose_layout(model, d2e, packing)
    batch = collator_for(layout, d2e, model.config)(encoded_rows(D2ESection(), count))
    train = TrainSection.model_validate({"output_dir": "x", "bf16": False, **options})
    return estimate_memory(model, d2e, layout, batch, train)


def size(parameters: Any) -> int:
    return sum(4 * parameter.numel() for parameter in parameters)


def test_tensor_bytes_follow_a_hand_count() -> None:
    with TensorBytes() as tensors:
        a = torch.empty(1000)
        b = a.view(10, 100)  # the same storage
        c = torch.empty(500)
        assert tensors.now == 4 * 1500
        del a, c
        assert tensors.now == 4 * 1000, "a view keeps its storage"
        del b
        assert tensors.now == 0
    assert tensors.peak == 4 * 1500


@pytest.mark.parametrize("kind", ["llama", "qwen2", "gpt2", "adapter"])  # qwen2 and gpt2 tie head and embedding
def test_weights_gradients_and_moments_are_exact(kind: str) -> None:
    model = with_lora(tiny_model()) if kind == "adapter" else tiny_model(kind)
    memory, trained = estimate(model), size(one for one in model.parameters() if one.requires_grad)
    buffers = sum(buffer.numel() * buffer.element_size() for buffer in model.buffers())
    assert memory.weights == size(model.parameters()) + buffers
    assert (memory.gradients, memory.optimizer) == (trained, 2 * trained)


@pytest.mark.parametrize("name", ["adamw_torch_fused", "adafactor", "sgd", "adagrad", "rmsprop"])
def test_an_optimiser_keeps_what_is_counted_for_it(name: str, tmp_path: Path) -> None:
    arguments = TrainingArguments(str(tmp_path), optim=name, use_cpu=True)
    kind, options = Trainer.get_optimizer_cls_and_kwargs(arguments)
    parameter = torch.nn.Parameter(torch.ones(30, 20))
    optimizer = kind([parameter], **options)
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    tensors = [kept for state in optimizer.state.values() for kept in state.values() if isinstance(kept, torch.Tensor)]
    assert optimizer_bytes(name, parameter) == sum(kept.nbytes for kept in tensors if kept.dim())
    assert optimizer_bytes("adamw_8bit", parameter) == 2 * 600


def test_the_peak_is_that_of_a_step_that_is_really_computed() -> None:
    from d2e_sft.model.collation import model_inputs
    from d2e_sft.model.forward import forward_backward
    from d2e_sft.objective.attach import attach_objective

    model, d2e = tiny_model(), D2ESection()
    memory = estimate(model, d2e)
    layout = choose_layout(model, d2e)
    inputs = model_inputs(collator_for(layout, d2e, model.config)(encoded_rows(d2e, 2)))
    attach_objective(model, d2e)
    model.train()
    with TensorBytes([*model.parameters(), *model.buffers()]) as tensors:
        for _ in range(2):
            forward_backward(model, inputs, "float32", CPU)
    assert memory.total - memory.optimizer == pytest.approx(tensors.peak, rel=0.01)


WHOLE = MemoryEstimate(weights=800, gradients=400, optimizer=1600, activations=1000, largest_layer=50)


@pytest.mark.parametrize(
    ("launcher", "total", "on_host"),
    [
        ("ddp", 800 + 2 * 400 + 1600 + 1000, 0),
        ("zero2", 800 + 100 + 400 + 1000, 0),
        ("zero2-offload", 800 + 100 + 1000, 400),
        ("zero3", 200 + 50 + 100 + 400 + 1000, 0),
        ("fsdp2", 200 + 50 + 100 + 400 + 1000, 0),
        ("zero3-offload", 50 + 100 + 1000, 200 + 400),
    ],
)
def test_a_launcher_divides_what_it_spreads(launcher: str, total: int, on_host: int) -> None:
    share, host = on_each_device(WHOLE, launcher, 4)
    assert (share.total, host) == (total, on_host)
    assert on_each_device(WHOLE, launcher, 1) == (WHOLE, 0)


# Shape, its layers, samples, tokens of a context, the objective, options of training.
FIVE_SHAPES: dict[str, tuple[str, int, int, int, D2ESection, dict[str, Any]]] = {
    "all views": ("smollm2-135m", 4, 3, 200, D2ESection(), {}),
    "original gradient": ("smollm2-135m", 4, 3, 200, D2ESection(view_gradients="original"), {}),
    "checkpointing": ("smollm2-135m", 8, 2, 300, D2ESection(), {"gradient_checkpointing": True}),
    "adapter": ("smollm2-135m", 4, 3, 200, D2ESection(), {"lora": True}),
    "many words": ("qwen3-0.6b", 1, 1, 150, D2ESection(objective="sft"), {}),
}


def measure_five_shapes() -> None:
    """Print the estimate without weights and the growth of this process in a step, in bytes, of each shape.

    glibc returns freed blocks to the system here, since the estimate counts living tensors only.
    """
    from d2e_sft.bench.train import synthetic_rows
    from d2e_sft.model.collation import model_inputs
    from d2e_sft.model.forward import enable_checkpointing, forward_backward
    from d2e_sft.model.shapes import random_model
    from d2e_sft.objective.attach import attach_objective

    ctypes.CDLL(None).mallopt(-3, 131_072)  # M_MMAP_THRESHOLD
    found: dict[str, tuple[int, int]] = {}
    for name in ("all views", *FIVE_SHAPES):  # the first once more: libraries allocate in their first step
        shape, layers, samples, context, d2e, options = FIVE_SHAPES[name]
        train = TrainSection(output_dir="x", bf16=False, gradient_checkpointing="gradient_checkpointing" in options)
        models = [random_model(shape, device, layers=layers) for device in (torch.device("meta"), CPU)]
        bare, real = (with_lora(model) if "lora" in options else model for model in models)
        layout = choose_layout(bare, d2e)
        batch = collator_for(layout, d2e, real.config)(synthetic_rows(samples, context, 49_152))
        estimate = estimate_memory(bare, d2e, layout, batch, train, accumulation=1)
        assert choose_layout(real, d2e) == layout
        attach_objective(real, d2e)
        if train.gradient_checkpointing:
            enable_checkpointing(real)
        memory = PeakMemory()
        forward_backward(real.train(), model_inputs(batch), "float32", CPU)
        found[name] = (estimate.gradients + estimate.activations, int(memory.peak_mb() * 2**20))
        del models, bare, real
        gc.collect()
    print(json.dumps(found), flush=True)


@pytest.mark.slow
def test_without_weights_the_estimate_is_the_peak_of_a_real_step_at_five_shapes(tmp_path: Path) -> None:
    found = json.loads(program(tmp_path, f"{__name__}:measure_five_shapes").printed.splitlines()[-1])
    assert found.keys() == FIVE_SHAPES.keys()
    for name, (estimated, measured) in found.items():
        print(f"{name}: estimated {estimated / 2**20:.0f} MiB, measured {measured / 2**20:.0f} MiB")
        assert measured > 100 * 2**20, "far above what else moves"
        assert estimated == pytest.approx(measured, rel=0.1), name
