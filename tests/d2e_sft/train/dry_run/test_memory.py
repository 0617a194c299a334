"""Dry runs: memory and time against measurements, and the settings that fit a card."""

import ctypes
import gc
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer, TrainingArguments

from d2e_sft.config.recipe import D2ESection, DataSection, Recipe, TrainSection, load_recipe
from d2e_sft.model.collation import model_inputs
from d2e_sft.model.device import PeakMemory
from d2e_sft.model.forward import enable_checkpointing
from d2e_sft.model.packing_support import Layout, choose_layout, collator_for
from d2e_sft.model.shapes import random_model
from d2e_sft.objective.attach import AttachedObjective
from d2e_sft.train.checks import count_steps
from d2e_sft.train.dry_run.cards import CARDS, Card
from d2e_sft.train.dry_run.fit import Load, fits_on, utilisation_of
from d2e_sft.train.dry_run.memory import (
    MemoryEstimate,
    TensorBytes,
    estimate_memory,
    on_each_device,
    optimizer_bytes,
)
from d2e_sft.train.dry_run.plan import Speed, draw, estimating_tokenizer, per_word
from tests.command import output_of, program
from tests.d2e_sft.train.dry_run.test_report import recipe_in
from tests.naive import encoded_rows
from tests.tiny import make_samples, tiny_model, with_lora

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


WHOLE = MemoryEstimate(weights=800, gradients=400, optimizer=1600, activations=1000, largest_layer=50)


@pytest.mark.parametrize(
    ("launcher", "total", "on_host"),
    [
        ("zero2-offload", 800 + 100 + 1000, 400),
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
        if train.gradient_checkpointing:
            enable_checkpointing(real)
        memory = PeakMemory()
        AttachedObjective(real, d2e, layout).backward(real.train(), model_inputs(batch), "float32", CPU)
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


@pytest.fixture(scope="module")
def recipe_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recipe_in(tmp_path_factory.mktemp("fit"))


# Adam on 100 float32 weights; in 16 bits they are half as large.
WHOLE_FIT = MemoryEstimate(weights=400, gradients=400, optimizer=800, activations=1000, largest_layer=40)
HALF = MemoryEstimate(weights=200, gradients=200, optimizer=400, activations=700, largest_layer=20)
LOAD = Load(WHOLE_FIT, HALF, flops=6e12, micro_batches=20, steps=5, accumulates=False)
# At 30 % of its operations, 70 % of its memory's rate and 50 % of its link's: 3e13 a second, 700 and 500 bytes.
CARD = Card("made-up", gib=1900 / 0.9 / 2**30, tflops=100, memory=1e-6, link=1e-6)
MOVED = 5 * (4 * 400 + 2 * 800)  # of the optimiser in five steps


@pytest.mark.parametrize(
    ("launcher", "memory", "fits", "optimizer", "sent"),
    [
        ("ddp", 400 + 2 * 400 + 800 + 1000, False, MOVED, 5 * 2 * 400),
        ("zero2", 200 + 100 + (800 + 400) / 4 + 700, True, MOVED / 4, 20 * 200 + 5 * 200),
        ("fsdp2", 100 + 20 + 100 + 200 + 700, True, MOVED / 4, 20 * 2 * 200 + 5 * 200),
        ("zero3", 50 + 20 + 100 + (800 + 400) / 4 + 700, True, MOVED / 4, 20 * (2 * 200 + 200)),
    ],
)
def test_launchers_share_out_4_cards(launcher: str, memory: float, fits: bool, optimizer: float, sent: float) -> None:
    (found,) = fits_on(CARD, LOAD, [launcher], 4, 0.3)
    assert (found.launcher, found.memory.total, found.fits, found.on_host) == (launcher, memory, fits, 0)
    assert found.times is not None
    assert found.times["computing"] == pytest.approx(20 * 6e12 / 3e13)
    assert found.times["optimiser"] == pytest.approx(optimizer / 700)
    assert found.times["between cards"] == pytest.approx(sent * 3 / 4 / 500)
    assert found.times["in all"] == pytest.approx(4 + optimizer / 700 + sent * 3 / 4 / 500)


def test_fsdp2_holds_whole_gradients_while_it_accumulates_them() -> None:
    (once,), (several,) = (fits_on(CARD, replace(LOAD, accumulates=one), ["fsdp2"], 4, 0.3) for one in (False, True))
    assert several.memory.gradients == once.memory.gradients + HALF.gradients


def test_one_process_needs_no_launcher_and_sends_nothing() -> None:
    (found,) = fits_on(CARD, LOAD, ["ddp", "zero3"], 1, 0.6)
    assert (found.launcher, found.memory) == ("1 process", WHOLE_FIT)
    assert found.times is not None
    assert (found.times["computing"], found.times["between cards"]) == (pytest.approx(2), 0)


def test_the_time_of_offloading_is_left_open() -> None:
    (found,) = fits_on(CARD, LOAD, ["zero2-offload"], 4, 0.3)
    assert found.times is None
    assert found.on_host == (800 + 400) / 4


def test_wider_models_are_assumed_to_use_more_of_a_card() -> None:
    models = (
        random_model(shape, torch.device("meta")) for shape in ("tiny", "smollm2-360m", "qwen3-0.6b", "gemma-3-4b")
    )
    narrowest = 0.05 + (960 - 576) / (1024 - 576) * (0.11 - 0.05)
    assert [utilisation_of(model) for model in models] == pytest.approx([0.05, narrowest, 0.11, 0.3])


def row(text: str, name: str) -> list[str]:
    """The cells of a line of a table, which lie at least two blanks apart."""
    line = next(line for line in text.splitlines() if line.startswith(name))
    return re.split(r" {2,}", line)[1:]


def test_the_command_shows_a_shape_on_cards_without_its_weights(recipe_file: Path) -> None:
    where = ("--dry-run", "--like", "tiny", "--gpu", "l40s", "--processes", 2)
    printed = output_of("train", recipe_file, "train.batch_size=16", "train.bf16=null", *where)
    assert "the shape of tiny: 25,120 parameters" in printed
    assert "estimated by word lengths" in printed
    memory, time = printed.split("== memory per device (2 × l40s)")[1].split("== time (2 × l40s)")
    assert row(memory, " ") == ["ddp", "fsdp2", "zero2", "zero3"]
    whole = 4 * 25_120 / 2**20  # of the weights in float32, in MiB
    shown = [float(cell.split()[0]) for cell in row(memory, "gradients")]
    assert shown == pytest.approx([2 * whole, whole / 2 + whole / 2, whole / 2, whole / 2], abs=0.06)
    assert row(memory, "fits") == ["yes"] * 4
    assert row(time, "in all") == ["0 s"] * 4
    assert "assumed, not measured: 5 % of 362 TFLOP/s" in time
    assert "this run computes in float32" in output_of("train", recipe_file, "train.batch_size=16", *where)


def test_a_run_that_fits_nowhere_says_what_to_try(recipe_file: Path) -> None:
    options = ("train.bf16=true", "--dry-run", "--like", "qwen3-1.7b", "--gpu", "l4")
    printed = output_of("train", recipe_file, *options)
    assert row(printed, "fits") == ["no"]
    assert "to make it fit: train.gradient_checkpointing=true" in printed
    assert row(printed, "in all") == ["–"]


def test_a_tokenizer_that_is_given_counts(recipe_file: Path) -> None:
    model = load_recipe(recipe_file).model.name
    printed = output_of("train", recipe_file, "--dry-run", "--like", "tiny", "--tokenizer", model)
    assert f"counted by the tokenizer of {model}" in printed
    own = output_of("train", recipe_file, "--dry-run", "--without-weights")
    lengths = [text.split("== lengths")[1].split("==")[0] for text in (printed, own)]
    assert lengths[0] == lengths[1]


def test_tokens_are_estimated_by_word_lengths(recipe_file: Path) -> None:
    samples = make_samples(4)
    tokenizer = estimating_tokenizer(load_recipe(recipe_file), samples)
    found = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("The understanding, of 305 水色 Zeit")
    assert "|".join(piece for piece, _ in found) == "The| underst|anding|,| of| |3|0|5| |水|色| Zeit"
    text = f" {samples[0].context}"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text, "ids of the samples' own pieces are distinct"
    one = samples[0].model_copy(update={"context": "It rained heavily.", "question": "Why?"})
    assert per_word(tokenizer, [one]) == 6 / 4, "It, rained, heavily, ., Why, ?"


def test_cards_are_found_by_the_names_that_torch_reports() -> None:
    names = {"NVIDIA H100 80GB HBM3": "h100", "NVIDIA A100-SXM4-40GB": "a100-40", "NVIDIA A100-SXM4-80GB": "a100-80"}
    names |= {"NVIDIA L40S": "l40s", "NVIDIA L4": "l4", "NVIDIA GeForce RTX 4090": "rtx4090", "NVIDIA H200": "h200"}
    for reported, name in names.items():
        assert next(card for card, facts in CARDS.items() if facts.named in reported) == name


def test_time_is_micro_batches_and_optimiser_steps() -> None:
    train = TrainSection(output_dir="x", batch_size=8, per_device_train_batch_size=4, num_train_epochs=2)
    recipe = Recipe(data=DataSection(train="x"), train=train)
    steps = count_steps(recipe, samples=18, processes=1)
    assert (steps.micro_batches, steps.per_epoch, steps.total) == (5, 3, 6)
    assert Speed(per_micro_batch=2.0, per_step=0.5, micro_batches=1).of_run(steps) == 10 * 2.0 + 6 * 0.5
    recipe.train.max_steps = 4
    steps = count_steps(recipe, 18, 1)  # the last of each epoch has one micro-batch
    assert Speed(per_micro_batch=2.0, per_step=0.0, micro_batches=1).of_run(steps) == (5 + 2) * 2.0


@pytest.mark.parametrize(("packing", "heaviest"), [("batched", "wide"), ("shared_batch", "full")])
def test_the_heaviest_micro_batch_costs_most_in_its_layout(recipe_file: Path, packing: str, heaviest: str) -> None:
    wide = {"original": [1] * 50, "imagined": [2] * 10, "refined": [3] * 10, "answer": [4]}
    full = {"original": [1] * 40, "imagined": [2] * 40, "refined": [3] * 40, "answer": [4]}
    recipe = load_recipe(recipe_file, ["train.batch_size=1", "train.per_device_train_batch_size=1"])
    layout: Any = Layout(packing, "sdpa")  # type: ignore[arg-type]
    drawn = draw(recipe, [wide, full], layout, count_steps(recipe, 2, 1))
    assert drawn.heaviest == [["wide", "full"].index(heaviest)]
    # The refined view is the original one, so it costs nothing: 2 × 50 tokens of the wider row against 3 × 40.
    equal = {**wide, "refined": wide["original"]}
    assert draw(recipe, [equal, full], layout, count_steps(recipe, 2, 1)).heaviest == [1]
