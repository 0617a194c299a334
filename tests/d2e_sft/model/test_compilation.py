"""Compiled layers: equal steps, a few compilations for many lengths, parameters under their own names."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from d2e_sft.config.recipe import D2ESection, load_recipe
from d2e_sft.model.compilation import check_compiler, compile_layers
from d2e_sft.model.packing_support import choose_layout
from d2e_sft.objective.attach import attach_objective
from d2e_sft.train.run import train_recipe
from d2e_sft.util.errors import UserError
from tests.factories import make_world, write_recipe
from tests.naive import encoded_rows, gradients_of, sums_of
from tests.tiny import tiny_model, with_lora

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="inductor on CPU needs g++")


@pytest.fixture(autouse=True)
def _nothing_compiled_before() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _steps(
    model: Any, config: D2ESection, backend: str | None = None
) -> list[tuple[float, dict[str, torch.Tensor], int]]:
    """Loss, gradients and the graphs compiled so far of one step each for batches of three lengths."""
    layout = choose_layout(model, config)
    attach_objective(model, config, through_logits=layout.through_logits)
    if backend:
        assert compile_layers(model, backend) == (4 if model.config.is_encoder_decoder else 2)
    torch._dynamo.utils.counters.clear()
    results, rows = [], encoded_rows(config, 8)
    for size in (2, 3, 8):
        model.zero_grad()
        sums = sums_of(model, rows[8 - size :], config, layout)
        sums["loss"].backward()
        graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        results.append((sums["loss"].item(), gradients_of(model), graphs))
    return results


def _checkpointed() -> Any:
    model = tiny_model("llama", seed=3).train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


CASES = [
    pytest.param(lambda: tiny_model("gemma3", seed=3), "all", "eager", id="gemma3"),  # two kinds of attention
    pytest.param(lambda: with_lora(tiny_model("llama", seed=3)), "original", "eager", id="lora-original"),
    # In float32 it loses five digits.
    pytest.param(lambda: tiny_model("t5", seed=3).double(), "all", "eager", id="t5"),
    pytest.param(_checkpointed, "all", "aot_eager", id="checkpointed"),
    pytest.param(lambda: tiny_model("llama", seed=3), "all", "inductor", marks=needs_compiler, id="inductor"),
]


@pytest.mark.parametrize(("build", "view_gradients", "backend"), CASES)
def test_compiled_layers_give_the_same_steps_and_compile_once(build: Any, view_gradients: Any, backend: str) -> None:
    """The loss to 1e-5, each gradient to 1e-4 of its norm; what the first two lengths compiled serves the others."""
    config = D2ESection(view_gradients=view_gradients)
    if backend == "inductor":
        check_compiler(torch.device("cpu"))
    # inductor's kernels without vectors, which g++ compiles sooner, and for all lengths at once.
    quick = torch._inductor.config.patch({"cpp.simdlen": 1})
    with quick, torch._dynamo.config.patch(assume_static_by_default=backend != "inductor"):
        expected, compiled = _steps(build(), config), _steps(build(), config, backend)
    for (plain_loss, plain, _), (loss, gradients, _) in zip(expected, compiled, strict=True):
        assert loss == pytest.approx(plain_loss, rel=1e-5)
        assert gradients.keys() == plain.keys()
        for name, gradient in plain.items():
            if gradient.norm() > 1e-4:
                assert (gradients[name] - gradient).norm() <= 1e-4 * gradient.norm(), name
    graphs = [count for _, _, count in compiled]
    assert graphs[0] > 0
    assert graphs[1] == graphs[-1]


def test_a_run_with_compiled_layers_leaves_what_another_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = make_world(tmp_path, bench=1)
    compiled: list[int] = []
    monkeypatch.setattr("d2e_sft.train.trainer.check_compiler", lambda device: None)  # there may be none
    monkeypatch.setattr(
        "d2e_sft.train.trainer.compile_layers", lambda model: compiled.append(compile_layers(model, "eager"))
    )
    weights = []
    for compile_it in (False, True):
        overrides = ("train.max_steps=2", f"train.compile_layers={compile_it}")
        recipe = load_recipe(write_recipe(world, tmp_path / f"run-{compile_it}", *overrides))
        weights.append(load_file(train_recipe(recipe) / "model.safetensors"))
    assert compiled == [2]
    assert weights[0].keys() == weights[1].keys()
    for name, tensor in weights[0].items():
        torch.testing.assert_close(weights[1][name], tensor, rtol=1e-5, atol=1e-6, msg=name)


def test_a_missing_compiler_is_an_error() -> None:
    # inductor's own patch: pytest's would leave the setting removed, and every later compilation would fail.
    without = torch._inductor.config.patch({"cpp.cxx": ("no-such-compiler",)})
    with without, pytest.raises(UserError, match=r"torch.compile does not work on cpu(.|\n)*g\+\+"):
        check_compiler(torch.device("cpu"))


def test_zero3_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("d2e_sft.model.compilation.is_deepspeed_zero3_enabled", lambda: True)
    with pytest.raises(UserError, match=r"train.compile_layers=true: not supported under ZeRO-3"):
        check_compiler(torch.device("cpu"))


def test_a_model_without_common_layers_is_named() -> None:
    with pytest.raises(UserError, match="has no layers that can be compiled"):
        compile_layers(torch.nn.Linear(2, 2))
