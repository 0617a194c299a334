"""A training on the device: D2ETrainer on plain rows, sharded by FSDP2, under ZeRO, and on quantised weights."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainingArguments

from d2e_sft.bench.train import synthetic_rows
from d2e_sft.config.objectives import VIEWS
from d2e_sft.config.recipe import D2ESection
from d2e_sft.model.collation import model_inputs
from d2e_sft.model.layers import prepare_for_adapter, quantization_config
from d2e_sft.model.packing_support import choose_layout, collator_for
from d2e_sft.objective.attach import AttachedObjective
from d2e_sft.train.config import D2EConfig
from d2e_sft.train.trainer import D2ETrainer
from d2e_sft.util.errors import UserError
from tests.gpu.conftest import Machine


def train(
    machine: Machine, folder: Path, model: Any, trainer_class: type[D2ETrainer] = D2ETrainer, **options: Any
) -> D2ETrainer:
    rows = synthetic_rows(8, machine.size(200, 20), model.config.vocab_size)
    if options.pop("shorter", False):  # row by row, at the front, as prompts of different lengths
        cut = machine.size(20, 2)
        rows = [{**row, **{view: row[view][n * cut :] for view in VIEWS}} for n, row in enumerate(rows)]
    if options.get("objective") == "prefer":
        rows = [{**row, "rejected": row["answer"][::-1]} for row in rows]
    names = ("micro_batch_tokens", "objective", "prefer_form", "packing")
    own = {name: options.pop(name) for name in names if name in options}
    args = TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=8, max_steps=6, learning_rate=2e-3, logging_steps=1,
        lr_scheduler_type="constant", save_strategy="no", report_to="none", disable_tqdm=True,
        remove_unused_columns=False, use_cpu=not machine.on_cuda, dataloader_pin_memory=machine.on_cuda,
        **{"bf16": machine.on_cuda, **options},
    )  # fmt: skip
    trainer = trainer_class(model, D2EConfig.of(args, **own), train_dataset=rows)
    trainer.train()
    return trainer


def losses(trainer: D2ETrainer) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.parametrize("tokens", [None, 900])
def test_the_trainer_lowers_the_loss_in_mixed_precision_and_says_where_the_time_went(
    machine: Machine, tmp_path: Path, record_property: pytest.RecordProperty, tokens: int | None
) -> None:
    trainer = train(machine, tmp_path, machine.model("smollm2-135m", layers=4), micro_batch_tokens=tokens)
    found, entry = losses(trainer), trainer.state.log_history[-2]
    assert found[-1] < 0.9 * found[0]
    parts = [entry[name] for name in ("time_in_model", "time_in_optimizer", "time_in_data", "time_elsewhere")]
    assert sum(parts) == pytest.approx(1, abs=0.01)
    record_property("layout", trainer.layout.describe())
    record_property("shares_of_time", parts)
    record_property("memory_gib", entry["memory_gib"])


def test_padded_rows_of_different_lengths_have_finite_gradients(machine: Machine, tmp_path: Path) -> None:
    trainer = train(machine, tmp_path, machine.model("smollm2-135m", layers=4), packing="batched", shorter=True)
    assert trainer.layout.packing == "batched"
    assert all(map(math.isfinite, losses(trainer)))


@pytest.mark.parametrize("form", ["dpo", "orpo"])
def test_preferences_are_learnt(
    machine: Machine,
    tmp_path: Path,
    record_property: pytest.RecordProperty,
    monkeypatch: pytest.MonkeyPatch,
    form: str,
) -> None:
    monkeypatch.setenv("D2E_CACHE", str(tmp_path / "cache"))  # of the reference's log-probabilities
    model = machine.model("smollm2-135m", layers=4)
    trainer = train(machine, tmp_path / "run", model, objective="prefer", prefer_form=form)
    entries = [entry for entry in trainer.state.log_history if "rewards/margins" in entry]
    margins = [entry["rewards/margins"] for entry in entries]
    record_property("layout", trainer.layout.describe())
    record_property("margins", margins)
    if form == "dpo":  # until the first step the model is its reference
        assert margins[0] == pytest.approx(0, abs=2e-2 if machine.on_cuda else 1e-5)
        assert entries[0]["preference"] == pytest.approx(0.6931, abs=1e-2)
    assert margins[-1] > margins[0]
    assert entries[-1]["preference"] < entries[0]["preference"]


class Overflowing(D2ETrainer):
    """Its gradients overflow in the second step."""

    def compute_loss(self, *args: Any, **options: Any) -> Any:
        loss = super().compute_loss(*args, **options)
        if self.state.global_step == 1:
            loss.register_hook(lambda gradient: gradient * float("inf"))
        return loss


def test_float16_trains_as_float32_does_and_skips_a_step_that_overflows(
    machine: Machine, tmp_path: Path, record_property: pytest.RecordProperty, capsys: pytest.CaptureFixture[str]
) -> None:
    if not machine.on_cuda:
        pytest.skip("float16 needs CUDA")
    runs = {
        name: train(machine, tmp_path / name, machine.model("smollm2-135m", layers=4), kind, fp16=fp16, bf16=False)
        for name, kind, fp16 in (
            ("float32", D2ETrainer, False), ("float16", D2ETrainer, True), ("overflowing", Overflowing, True)
        )
    }  # fmt: skip
    exact = losses(runs["float32"])
    record_property("losses", {name: losses(run) for name, run in runs.items()})
    assert losses(runs["float16"]) != exact, "float16 was not on"
    for name in ("float16", "overflowing"):
        history = [entry for entry in runs[name].state.log_history if "loss" in entry]
        skips = [entry["skipped_steps"] for entry in history]
        record_property(f"skipped_{name}", skips)
        # Each step takes all rows, so a step has the loss of as many steps in float32 as were not skipped before it.
        expected = [exact[step - sum(skips[:step])] for step in range(len(exact))]
        assert history[0]["loss"] == pytest.approx(expected[0], rel=5e-3)
        assert [entry["loss"] for entry in history] == pytest.approx(expected, rel=5e-2, abs=2e-3)
        assert history[-1]["loss"] < 0.9 * history[0]["loss"]
    assert skips[1] == 1
    assert "step 2: a gradient overflowed in float16" in capsys.readouterr().err


@pytest.fixture
def one_process(machine: Machine) -> Iterator[None]:
    """A process group of this process alone."""
    from torch import distributed

    for name, value in {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
    }.items():
        os.environ.setdefault(name, value)
    distributed.init_process_group(
        "nccl" if machine.on_cuda else "gloo", store=distributed.HashStore(), rank=0, world_size=1
    )
    yield
    distributed.destroy_process_group()


def prepared(machine: Machine, model: Any) -> tuple[AttachedObjective, dict[str, Any]]:
    """The objective of a model, and the inputs of a step on four rows."""
    d2e = D2ESection()
    layout = choose_layout(model, d2e)
    batch = collator_for(layout, d2e, model.config)(synthetic_rows(4, machine.size(200, 20), model.config.vocab_size))
    objective = AttachedObjective(model, d2e, layout)
    return objective, model_inputs(batch, machine.device)


def step(machine: Machine, model: Any, shard: Any = None) -> list[torch.Tensor]:
    objective, inputs = prepared(machine, model)
    if shard is not None:
        shard(model)
    model.train()
    objective.backward(model, inputs, "float32", machine.device)
    gradients = [parameter.grad for parameter in model.parameters()]
    return [g.full_tensor() if hasattr(g, "full_tensor") else g for g in gradients]  # type: ignore[union-attr,misc]


@pytest.mark.usefixtures("one_process")
def test_fsdp2_on_one_device_has_the_gradients_of_the_whole_model(machine: Machine) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(machine.device.type, (1,))

    def shard(model: Any) -> None:
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)

    whole = step(machine, machine.model("smollm2-135m", layers=2))
    sharded = step(machine, machine.model("smollm2-135m", layers=2), shard)
    assert len(whole) == len(sharded)
    for one, other in zip(whole, sharded, strict=True):
        assert (one - other).norm() <= 1e-4 * one.norm()


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.usefixtures("one_process")
def test_zero_on_one_device_has_the_gradients_of_the_whole_model(machine: Machine, stage: int) -> None:
    if find_spec("deepspeed") is None:
        pytest.skip("deepspeed is not installed")
    if not machine.on_cuda:
        pytest.skip("tests/d2e_sft/distributed runs ZeRO on two CPU processes")
    import deepspeed
    from deepspeed.utils import safe_get_full_grad

    whole = step(machine, machine.model("smollm2-135m", layers=2))
    model = machine.model("smollm2-135m", layers=2)
    objective, inputs = prepared(machine, model)
    sizes = {"train_micro_batch_size_per_gpu": 4, "zero_allow_untested_optimizer": True}
    config = {**sizes, "zero_optimization": {"stage": stage}}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    engine, *_ = deepspeed.initialize(model=model, config=config, optimizer=optimizer)
    sums = objective.sums(engine, inputs)
    engine.backward(sums["loss"] / len(inputs["targets"]))
    for one, parameter in zip(whole, engine.module.parameters(), strict=True):
        found = safe_get_full_grad(parameter)
        assert (one - found.to(one.device)).norm() <= 1e-3 * one.norm()


def test_an_adapter_on_weights_of_four_bits_packs_exactly_and_learns(machine: Machine, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    try:
        config = quantization_config("4bit", "bfloat16" if machine.on_cuda else "float32")
    except UserError as error:
        pytest.skip(str(error))
    from transformers import AutoModelForCausalLM

    machine.model("smollm2-135m", layers=2).save_pretrained(tmp_path / "model")
    quantised = AutoModelForCausalLM.from_pretrained(
        tmp_path / "model", quantization_config=config, device_map={"": machine.device}
    )
    adapter = peft.LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM")
    model = peft.get_peft_model(prepare_for_adapter(quantised), adapter)
    found = train(machine, tmp_path / "run", model)
    assert found.layout.packing == "shared_batch"
    assert losses(found)[-1] < losses(found)[0]
