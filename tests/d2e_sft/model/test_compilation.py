"""Forwards: compiled, through oneDNN, with the hidden states that an objective needs, within a token budget."""

import copy
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from d2e_sft.config.recipe import D2ESection, load_recipe
from d2e_sft.decoding import DecodingConfig, generate_debiased
from d2e_sft.model.collation import Collator
from d2e_sft.model.forward import cache_name, last_logits
from d2e_sft.model.layers import ReorderedLinear, check_compiler, compile_layers, ready_to_decode
from d2e_sft.model.packing_support import Layout, choose_layout
from d2e_sft.model.token_budget import TokenCosts, cut_by_tokens
from d2e_sft.train.run import train_recipe
from d2e_sft.util.errors import UserError
from tests.d2e_sft.decoding.pairs import DECODING, generated, prefixed_case, random_prompts
from tests.d2e_sft.train.test_loader import rows
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
    monkeypatch.setattr("d2e_sft.model.layers.is_deepspeed_zero3_enabled", lambda: True)
    with pytest.raises(UserError, match=r"train.compile_layers=true: not supported under ZeRO-3"):
        check_compiler(torch.device("cpu"))


@pytest.mark.parametrize("kind", ["llama", "mamba"])
@torch.no_grad()
def test_the_last_logits_are_those_of_the_last_positions(kind: str) -> None:
    model, ids = tiny_model(kind), torch.tensor([[5, 6, 7, 8], [9, 8, 7, 6]])
    logits, output = last_logits(model, 2, input_ids=ids)
    torch.testing.assert_close(logits, model(input_ids=ids).logits[:, -2:])
    assert output.logits.shape[1] == 2, "the others were not projected"


@pytest.mark.parametrize("kind", ["llama", "qwen2", "phi", "gemma2", "bloom", "mamba", "t5"])
def test_a_reordered_model_gives_the_same_logits_and_answers(kind: str) -> None:
    model = tiny_model(kind, seed=1)
    reordered = ready_to_decode(copy.deepcopy(model), "cpu")
    assert any(isinstance(module, ReorderedLinear) for module in reordered.modules())
    left = {name for name, module in reordered.named_modules() if type(module) is nn.Linear}
    assert all(name.endswith(".dt_proj") for name in left), "whose weights Mamba multiplies by itself"
    if kind == "mamba" and cache_name(model) != "cache":
        pytest.skip("refused before transformers 5.24")
    prompts = random_prompts(5, 8, 40, seed=1), random_prompts(5, 3, 9, seed=2)
    answers = [generate_debiased(one.eval(), *prompts, DECODING, stop_ids=[]) for one in (model, reordered)]
    assert answers[0] == answers[1]
    ids = torch.tensor([prompts[0][0]])
    inputs = {"input_ids": ids, **({"decoder_input_ids": ids[:, :4]} if kind == "t5" else {})}
    with torch.inference_mode():
        atol = 1e-3 if kind == "mamba" else 1e-5  # its scan adds up what rounding leaves
        torch.testing.assert_close(reordered(**inputs).logits, model(**inputs).logits, rtol=1e-4, atol=atol)


@pytest.mark.parametrize("kind", ["llama", "mamba"])
def test_other_dtypes_keep_their_layers(kind: str) -> None:
    if kind == "mamba" and cache_name(tiny_model(kind)) != "cache":
        pytest.skip("refused before transformers 5.24")
    model, pairs, _ = prefixed_case(kind)
    model = ready_to_decode(model.to(torch.bfloat16), "cpu")
    assert not any(isinstance(module, ReorderedLinear) for module in model.modules())
    assert all(generated(model, pairs, DecodingConfig(max_new_tokens=2), stop_ids=[]))


D2E = D2ESection()
SHARED = Layout("shared_batch", "sdpa")


def test_packed_micro_batches_are_filled_evenly_and_padded_ones_hold_like_lengths() -> None:
    packed = TokenCosts([10, 60, 20, 50, 30, 40])
    assert cut_by_tokens(range(6), packed, budget=110) == [[1, 4, 2], [3, 5, 0]]
    assert cut_by_tokens(range(6), packed, budget=70) == [[1, 0], [3, 2], [5, 4]]
    assert cut_by_tokens(range(6), packed, budget=5) == [[1], [3], [5], [4], [2], [0]], "each too long, each alone"
    shares = TokenCosts([10, 60, 20, 50, 30, 40], shared=8)
    assert shares.of_micro_batch([0, 1]) == 10 + 60 - 8
    padded = TokenCosts([10, 60, 20, 50, 30, 40], views=[3] * 6)
    assert cut_by_tokens(range(6), padded, budget=3 * 2 * 60) == [[1, 3], [5, 4, 2], [0]]
    assert cut_by_tokens(range(2), padded, budget=1000, processes=3) == [[], [1], [0]], "one process has none"
    fewer = TokenCosts([10, 60, 20, 50, 30, 40], views=[3, 2, 3, 2, 2, 3])
    assert fewer.of_micro_batch([1, 3]) == 4 * 60
    assert cut_by_tokens(range(6), fewer, budget=3 * 2 * 60) == [[1, 3], [5, 4, 2], [0]]
    assert cut_by_tokens(range(6), fewer, budget=7 * 60) == [[1, 3, 5], [4, 2, 0]]


def test_rows_with_the_same_context_share_a_micro_batch() -> None:
    # Contexts a to c; a further row of a saves 30 of its 40 tokens, one of b 5, and rows of c share too little.
    costs = TokenCosts([40] * 8, shared=0, contexts="abacbaca", saved={"a": 30, "b": 5})
    assert costs.of_micro_batch([0, 2, 5]) == 40 + 2 * (40 - 30)
    assert costs.of_micro_batch([0, 1, 4, 3, 6]) == 40 + (2 * 40 - 5) + 2 * 40
    assert cut_by_tokens(range(8), costs, budget=80) == [[1, 4], [0, 2, 5, 7], [3, 6]]
    assert cut_by_tokens(range(8), costs, budget=60) == [[0, 5], [2, 7], [1], [4], [3], [6]]
    by_rows, most = costs.budgeted(None, 3)
    assert most == 3
    for processes in (1, 2, 4):
        parts = cut_by_tokens(range(8), by_rows, most, processes)
        assert sorted(i for part in parts for i in part) == list(range(8))
        assert len(parts) % processes == 0
        assert max(map(len, parts)) <= 3
    # Contexts of 4, 2 and 2 rows: the first fills a micro-batch and begins another, where b finds room.
    assert cut_by_tokens(range(8), by_rows, most) == [[0, 2, 5], [7, 1, 4], [3, 6]]
    one_context = TokenCosts([40] * 4, contexts="aaaa", saved={"a": 30})
    assert sorted(map(len, cut_by_tokens(range(4), one_context, budget=500, processes=2))) == [2, 2], "none waits"


@pytest.mark.parametrize("views", [3, 1])
@pytest.mark.parametrize("size", [2, 5, 16])
def test_contexts_save_tokens_and_never_hold_more_than_is_counted(views: int, size: int) -> None:
    d2e = D2E if views == 3 else D2ESection(debias=False, distill=False)
    samples = rows(48, contexts=6)
    costs = TokenCosts.of(samples, SHARED, d2e)
    alone = TokenCosts.of([{**row, "context": 0} for row in samples], SHARED, d2e)
    collate, kept = Collator("shared_batch", d2e.views), Counter[str]()
    for start in range(0, 48, size):
        part = sorted(range(48), key=lambda i: samples[i]["context"])[start : start + size]
        kept["laid out"] += (laid_out := collate([samples[i] for i in part])["input_ids"].numel())
        kept["counted"] += (counted := costs.of_micro_batch(part))
        kept["alone"] += alone.of_micro_batch(part)
        assert laid_out <= counted
    assert kept["laid out"] <= kept["counted"] < 0.9 * kept["alone"]
