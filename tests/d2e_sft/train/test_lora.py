"""Training adapters: the packed step equals the naive one, with and without gradient checkpointing."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import AutoPeftModelForCausalLM
from safetensors.torch import load_file
from transformers import modeling_utils

from d2e_sft.config.recipe import D2ESection, load_recipe
from d2e_sft.model.loading import load_model
from d2e_sft.model.storage.builtin import BUILTIN
from d2e_sft.model.storage.folder import base_of_adapter
from d2e_sft.model.storage.seal import read_seal
from d2e_sft.train.prepare import adapter_config, wrapped_in_adapter
from d2e_sft.train.run import train_recipe
from tests.factories import write_recipe
from tests.naive import assert_equal_to_naive
from tests.tiny import save_tiny_model, tiny_model, with_lora

ADAPTERS = {
    "all-linear": {"target_modules": "all-linear"},
    "attention": {"target_modules": ["q_proj", "v_proj"]},
    "on-the-head": {"target_modules": ["q_proj", "lm_head"]},
    "head-in-full": {"target_modules": "all-linear", "modules_to_save": ["lm_head"]},
    "dora": {"target_modules": "all-linear", "use_dora": True},
}


@pytest.mark.parametrize("view_gradients", ["all", "original"])
@pytest.mark.parametrize(
    ("kind", "adapter"),
    [
        *(("llama", name) for name in ADAPTERS),
        *((kind, "all-linear") for kind in ("gemma3", "gemma4", "granite4")),
        ("gemma3", "on-the-head"),
    ],
)
def test_a_packed_step_on_an_adapter_equals_the_naive_one(kind: str, adapter: str, view_gradients: Any) -> None:
    model = with_lora(tiny_model(kind, seed=3), **ADAPTERS[adapter])
    if kind == "gemma4":  # four layers: in float32 rounding exceeds the tolerance
        model.double()
    layout = assert_equal_to_naive(model, D2ESection(view_gradients=view_gradients), "auto")
    assert (layout.packing, layout.reason) == ("shared_batch", None)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("use_dora", True),
        ("use_rslora", True),
        ("modules_to_save", ["lm_head"]),
        *(("init_lora_weights", start) for start in ("gaussian", "orthogonal", "pissa", "olora")),
    ],
)
def test_a_kind_of_adapter_is_pefts_own_and_loads_as_it_was_trained(
    world: Path, tmp_path: Path, key: str, value: Any
) -> None:
    recipe = load_recipe(write_recipe(world, tmp_path / "run", f"model.lora={ {'r': 4, key: value} }"))
    model = wrapped_in_adapter(load_model(recipe.model.name).model, adapter_config(recipe), recipe.model.name)
    config = model.peft_config["default"]
    assert (getattr(config, key), config.r) == (value, 4)
    with torch.no_grad():  # as if trained
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    ids = torch.arange(5, 25)[None]
    before, base = model.eval()(ids).logits, load_model(recipe.model.name).model(ids).logits
    assert (before - base).norm() > 0.1 * base.norm()
    model.save_pretrained(tmp_path / "adapter")
    torch.testing.assert_close(
        load_model(str(tmp_path / "adapter")).model.eval()(ids).logits, before, rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("adapter", [{"target_modules": ["q_proj", "lm_head"]}, {"target_modules": ["embed_tokens"]},
                                     {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}])  # fmt: skip
@pytest.mark.parametrize("kind", ["qwen2", "gemma3"])
def test_an_adapter_on_a_head_that_is_tied_to_the_embeddings_loads_as_it_was_trained(
    kind: str, adapter: dict[str, Any], tmp_path: Path
) -> None:
    source = save_tiny_model(tmp_path / "model", kind)
    recipe = load_recipe(write_recipe(tmp_path, tmp_path / "run", f"model.lora={ {'r': 4, **adapter} }"))
    model = wrapped_in_adapter(load_model(str(source)).model, adapter_config(recipe), str(source))
    with torch.no_grad():  # as if trained
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    ids = torch.arange(5, 25)[None]
    before = model.eval()(ids).logits
    model.save_pretrained(tmp_path / "adapter")
    loaded = load_model(str(tmp_path / "adapter")).model.eval()
    torch.testing.assert_close(loaded(ids).logits, before, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("targets", "view_gradients"), [("all-linear", "original"), (["q_proj"], "all")])
def test_gradient_checkpointing_trains_the_same_adapter(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, targets: Any, view_gradients: str
) -> None:
    def trained(run: str, *overrides: str) -> dict[str, torch.Tensor]:
        lora = {"r": 4, "target_modules": targets}
        given = ("train.max_steps=2", f"model.lora={lora}", f"d2e.view_gradients={view_gradients}", *overrides)
        recipe = load_recipe(write_recipe(world, tmp_path / run, *given))
        return load_file(train_recipe(recipe) / "adapter_model.safetensors")

    plain = trained("plain")
    calls = []
    plain_checkpoint = modeling_utils.checkpoint

    def counted(*args: Any, **options: Any) -> Any:
        calls.append(1)
        return plain_checkpoint(*args, **options)

    monkeypatch.setattr(modeling_utils, "checkpoint", counted)
    checkpointed = trained("checkpointed", "train.gradient_checkpointing=true")
    assert calls, "nothing was checkpointed"
    assert plain.keys() == checkpointed.keys()
    for name, weights in plain.items():
        assert weights.abs().max() > 0, name  # B starts at zero: it has been trained
        torch.testing.assert_close(checkpointed[name], weights, rtol=1e-6, atol=1e-7, msg=name)


def test_peft_loads_an_adapter_of_the_built_in_model_which_other_machines_know_by_its_name(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, elsewhere = tmp_path / "cache", tmp_path / "another"
    shutil.copytree(world / "model", here / "models" / "smollm2-135m-instruct-q4_1")
    monkeypatch.setenv("D2E_CACHE", str(here))
    run = train_recipe(
        load_recipe(write_recipe(world, tmp_path / "run", f"model.name={BUILTIN}", "model.lora={r: 2}"))
    )
    ids = torch.arange(5, 25)[None]
    found = AutoPeftModelForCausalLM.from_pretrained(str(run)).eval()(ids).logits
    here.rename(elsewhere)
    monkeypatch.setenv("D2E_CACHE", str(elsewhere))
    assert base_of_adapter(run) == BUILTIN
    assert list(read_seal(run).depends_on) == [BUILTIN]
    expected = load_model(str(run)).model.eval()(ids).logits
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert not torch.equal(expected, load_model(BUILTIN).model.eval()(ids).logits)
