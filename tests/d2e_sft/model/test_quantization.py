"""QLoRA: packed steps on quantised weights, what a run leaves, and what is said where it cannot run."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from d2e_sft.config.recipe import D2ESection, Recipe, load_recipe
from d2e_sft.model import quantization
from d2e_sft.model.loading import load_model
from d2e_sft.model.packing_support import choose_layout
from d2e_sft.model.quantization import prepare_for_adapter, quantization_config
from d2e_sft.objective.attach import attach_objective
from d2e_sft.train.run import train_recipe
from d2e_sft.util.errors import UserError
from tests.factories import make_world, write_recipe
from tests.naive import assert_equal_to_naive, encoded_rows, gradients_of, sums_of
from tests.tiny import save_tiny_model, with_lora

needs_bitsandbytes = pytest.mark.skipif(
    importlib.util.find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed (extra train-gpu)"
)


def _quantised(folder: Path, kind: Any) -> Any:
    save_tiny_model(folder, seed=3)
    model = load_model(str(folder), quantization=quantization_config(kind, "float32")).model
    return with_lora(prepare_for_adapter(model))


@needs_bitsandbytes
@pytest.mark.parametrize("view_gradients", ["all", "original"])
def test_a_packed_step_on_4_bit_weights_equals_the_naive_one(tmp_path: Path, view_gradients: Any) -> None:
    model = _quantised(tmp_path, "4bit")
    assert type(model.get_base_model().model.layers[0].self_attn.q_proj.base_layer).__name__ == "Linear4bit"
    layout = assert_equal_to_naive(model, D2ESection(view_gradients=view_gradients), "auto")
    assert (layout.packing, layout.reason) == ("shared_batch", None)


@needs_bitsandbytes
def test_a_packed_step_on_8_bit_weights_equals_the_batched_one_up_to_int8_activations(tmp_path: Path) -> None:
    config, rows, results = D2ESection(), encoded_rows(D2ESection()), []
    for packing in ("shared_batch", "batched"):
        model = _quantised(tmp_path / packing, "8bit")
        layout = choose_layout(model, config, packing)  # type: ignore[arg-type]
        attach_objective(model, config)
        sums = sums_of(model, rows, config, layout)
        sums["loss"].backward()
        results.append((sums["loss"].item(), torch.cat([g.flatten() for g in gradients_of(model).values()])))
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-2)
    assert (results[0][1] - results[1][1]).norm() < 0.05 * results[1][1].norm()


def _recipe(folder: Path) -> Recipe:
    overrides = ("model.lora={r: 4}", "model.quantization=4bit", "train.max_steps=2", "train.learning_rate=0.03")
    world = make_world(folder, bench=1)
    return load_recipe(write_recipe(world, folder / "run", *overrides, "train.gradient_checkpointing=true"))


@needs_bitsandbytes
def test_a_qlora_run_leaves_an_adapter_that_merges_into_the_whole_weights(tmp_path: Path) -> None:
    run = train_recipe(_recipe(tmp_path))
    assert (run / "adapter_model.safetensors").is_file()
    before, after = (dict(load_model(str(folder)).model.named_parameters()) for folder in (tmp_path / "model", run))
    assert before.keys() == after.keys()
    changed = {name for name, weights in before.items() if not torch.equal(after[name], weights)}
    assert changed == {name for name in before if "_proj" in name}
    with pytest.raises(UserError, match="an adapter; quantised or random weights need a whole model"):
        load_model(str(run), quantization=quantization_config("4bit", "float32"))


def test_quantised_weights_without_an_adapter_are_refused(tmp_path: Path) -> None:
    recipe = tmp_path / "run.yaml"
    recipe.write_text("data: {train: x}\ntrain: {output_dir: x}\nmodel: {quantization: 4bit}\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"model.quantization=4bit needs model.lora"):
        load_recipe(recipe)
    assert load_recipe(recipe, ["model.lora={}"]).model.quantization == "4bit"


def test_without_bitsandbytes_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = _recipe(tmp_path)
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"bitsandbytes is not installed(.|\n)*pip install 'd2e-sft\[train-gpu\]'"):
        train_recipe(recipe)
    assert not (tmp_path / "run").exists()


def test_a_device_that_bitsandbytes_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = SimpleNamespace(__version__="0.45", supported_torch_devices={"cuda"})
    monkeypatch.setitem(sys.modules, "bitsandbytes", fake)  # type: ignore[arg-type]
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    with pytest.raises(UserError, match=r"bitsandbytes 0.45 does not run on cpu; it runs on cuda"):
        quantization_config("8bit", "float32")


def test_sharding_engines_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantization, "asked_for", lambda engine: engine == "FSDP")
    with pytest.raises(UserError, match=r"model.quantization=4bit: FSDP shards the weights"):
        quantization_config("4bit", "float32")
    monkeypatch.setattr("d2e_sft.model.quantization.is_deepspeed_zero3_enabled", lambda: True)
    with pytest.raises(UserError, match="ZeRO-3 shards the weights"):
        quantization_config("4bit", "float32")
