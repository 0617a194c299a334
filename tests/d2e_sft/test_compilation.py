"""Compiled layers: equal steps, a few compilations for many lengths, parameters under their own names."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file

from d2e_sft import compilation
from d2e_sft.compilation import check_compiler, compile_layers
from d2e_sft.errors import UserError
from d2e_sft.layout import choose_layout
from d2e_sft.objective import attach_objective
from d2e_sft.recipe import D2ESection, Recipe
from d2e_sft.sample import write_samples
from d2e_sft.train import train_recipe
from tests.naive import encoded_rows, gradients_of, sums_of
from tests.tiny import make_samples, save_tiny_model, tiny_model

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="inductor on CPU needs g++")


@pytest.fixture(autouse=True)
def _nothing_compiled_before() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _steps(model: Any, config: D2ESection, sizes: list[int]) -> list[tuple[float, dict[str, torch.Tensor]]]:
    """Loss and gradients of one step for each batch size."""
    layout = choose_layout(model, config)
    attach_objective(model, config, through_logits=layout.through_logits)
    results, rows = [], encoded_rows(config, 8)
    for size in sizes:
        model.zero_grad()
        sums = sums_of(model, rows[8 - size :], config, layout)
        sums["loss"].backward()
        results.append((sums["loss"].item(), gradients_of(model)))
    return results


def _assert_compiling_changes_nothing(build: Any, config: D2ESection, backend: str, rtol: float = 1e-5) -> None:
    """The loss to `rtol`, each gradient to 10 × `rtol` of its norm, over batches of five lengths."""
    sizes, model = [2, 3, 5, 7, 8], build()
    expected = _steps(build(), config, sizes)
    assert compile_layers(model, backend) == 2
    for (loss, gradients), (plain_loss, plain) in zip(_steps(model, config, sizes), expected, strict=True):
        assert loss == pytest.approx(plain_loss, rel=rtol)
        assert gradients.keys() == plain.keys()
        for name, gradient in plain.items():
            if gradient.norm() > 1e-4:
                assert (gradients[name] - gradient).norm() <= 10 * rtol * gradient.norm(), name


def _lora() -> Any:
    torch.manual_seed(7)
    config = LoraConfig(r=4, init_lora_weights=False, task_type="CAUSAL_LM", target_modules="all-linear")
    return get_peft_model(tiny_model("llama", seed=3), config)


def _checkpointed() -> Any:
    model = tiny_model("llama", seed=3).train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


BUILD = {
    "llama": lambda: tiny_model("llama", seed=3),
    "gemma3": lambda: tiny_model("gemma3", seed=3),
    "gpt2": lambda: tiny_model("gpt2", seed=3),
    "lora": _lora,
    "checkpointed": _checkpointed,
}


@pytest.mark.parametrize("view_gradients", ["all", "original"])
@pytest.mark.parametrize("build", BUILD.values(), ids=BUILD)
def test_compiled_layers_give_the_same_steps(build: Any, view_gradients: Any) -> None:
    _assert_compiling_changes_nothing(build, D2ESection(view_gradients=view_gradients), "aot_eager")


@needs_compiler
def test_inductors_kernels_give_the_same_steps() -> None:
    check_compiler(torch.device("cpu"))
    _assert_compiling_changes_nothing(BUILD["llama"], D2ESection(), "inductor")


@pytest.mark.parametrize("view_gradients", ["all", "original"])
@pytest.mark.parametrize("build", BUILD.values(), ids=BUILD)
def test_batches_of_other_lengths_compile_nothing_anew(build: Any, view_gradients: Any) -> None:
    model, config = build(), D2ESection(view_gradients=view_gradients)
    compile_layers(model, "eager")
    _steps(model, config, [2, 3])
    compiled = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert compiled > 0
    _steps(model, config, [4, 5, 6, 7, 8])
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == compiled


def test_a_run_with_compiled_layers_leaves_what_another_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_tiny_model(tmp_path / "model")
    write_samples(make_samples(8), tmp_path / "train.parquet")
    compiled: list[int] = []
    monkeypatch.setattr("d2e_sft.train.check_compiler", lambda device: None)  # there may be none
    monkeypatch.setattr("d2e_sft.train.compile_layers", lambda model: compiled.append(compile_layers(model, "eager")))
    weights = []
    for compile_it in (False, True):
        recipe = Recipe.model_validate(
            {
                "model": {"name": str(tmp_path / "model")},
                "data": {"train": str(tmp_path / "train.parquet"), "max_length": 1000},
                "train": {
                    "output_dir": str(tmp_path / f"run-{compile_it}"), "epochs": 1, "batch_size": 4,
                    "micro_batch_size": 4, "learning_rate": 3e-3, "precision": "float32", "compile": compile_it,
                },
            }
        )  # fmt: skip
        weights.append(load_file(train_recipe(recipe) / "model.safetensors"))
    assert compiled == [2]
    assert weights[0].keys() == weights[1].keys()
    for name, tensor in weights[0].items():
        torch.testing.assert_close(weights[1][name], tensor, rtol=1e-5, atol=1e-6, msg=name)


def test_a_machine_without_a_compiler_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import config, cpp_builder

    monkeypatch.setattr(config.cpp, "cxx", ("no-such-compiler",))
    cpp_builder.get_cpp_compiler.cache_clear()
    try:
        with pytest.raises(UserError, match=r"torch.compile does not work on cpu(.|\n)*g\+\+"):
            check_compiler(torch.device("cpu"))
    finally:
        cpp_builder.get_cpp_compiler.cache_clear()


def test_a_model_without_common_layers_is_named() -> None:
    with pytest.raises(UserError, match="has no layers that can be compiled"):
        compilation.compile_layers(torch.nn.Linear(2, 2))
