"""The weights of an export: as they were trained, merged, or in another dtype, and where answers end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GenerationConfig

from d2e_sft.hub import weights
from d2e_sft.hub.export import export
from d2e_sft.hub.weights import ExportOptions
from d2e_sft.model.loading import LoadedModel, load_model
from tests.command import call, output_of, refusal_of
from tests.d2e_sft.hub.runs import content_of, make_run
from tests.factories import seal_run
from tests.tiny import tiny_model, tiny_tokenizer


def test_the_generation_config_stops_where_answers_ended_in_training(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    GenerationConfig(eos_token_id=9, temperature=0.3, do_sample=True).save_pretrained(run)
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, "use_cache": False}))
    seal_run(run)
    export(run, tmp_path / "out", ExportOptions(link=True))
    written = GenerationConfig.from_pretrained(tmp_path / "out")
    assert (written.eos_token_id, written.pad_token_id, written.temperature) == ([1, 9], 0, 0.3)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["use_cache"] is True
    assert json.loads((run / "config.json").read_text())["use_cache"] is False, "the run stays as it is"
    assert GenerationConfig.from_pretrained(run).eos_token_id == 9


def test_a_merged_adapter_is_the_base_with_its_products_added(tmp_path: Path) -> None:
    run = make_run(tmp_path, lora=True)
    export(run, tmp_path / "out", ExportOptions(merge=True))
    merged = load_file(tmp_path / "out" / "model.safetensors")
    adapter = load_file(run / "adapter_model.safetensors")
    scale = json.loads((run / "adapter_config.json").read_text())["lora_alpha"] / 2
    name = "model.layers.0.self_attn.q_proj"
    a, b = (adapter[f"base_model.model.{name}.lora_{part}.weight"] for part in "AB")
    base = tiny_model(seed=1).state_dict()[f"{name}.weight"]
    torch.testing.assert_close(merged[f"{name}.weight"], base + scale * b @ a)
    assert not (tmp_path / "out" / "adapter_config.json").exists()


@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_a_merge_that_changes_the_logits_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    run = make_run(tmp_path, kind, lora=True)
    before = content_of(tmp_path)

    def load(name: str, **options: Any) -> LoadedModel:
        without_adapter = LoadedModel(tiny_model(kind, seed=1), tiny_tokenizer())
        return without_adapter if name == str(run) else load_model(name, **options)

    with monkeypatch.context() as patch:
        patch.setattr(weights, "load_model", load)
        message = refusal_of("export", run, tmp_path / "out", "--merge")
    assert "the merged model's logits differ from the adapter's by " in message
    assert "expected at most 0.001 in float32, so nothing was written" in message
    assert content_of(tmp_path) == before
    output_of("export", run, tmp_path / "out", "--merge")


def test_an_adapter_stays_one_unless_it_is_merged(tmp_path: Path) -> None:
    run = make_run(tmp_path, lora=True)
    warning = call("export", run, tmp_path / "out").err
    assert "has no name on the Hub; for use elsewhere, add --merge" in warning
    assert "Its base model has no name on the Hub" in (tmp_path / "out" / "README.md").read_text()
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        assert (tmp_path / "out" / name).read_bytes() == (run / name).read_bytes()
    assert not (tmp_path / "out" / "model.safetensors").exists()
    assert (tmp_path / "out" / "generation_config.json").is_file()


@pytest.mark.parametrize("lora", [False, True])
def test_the_dtype_of_the_weights_can_be_chosen(tmp_path: Path, lora: bool) -> None:
    run = make_run(tmp_path, lora=lora)
    if lora:  # weights of a usual size: sharp ones are another model in 8 bits of mantissa
        for file in (tmp_path / "base" / "model.safetensors", run / "adapter_model.safetensors"):
            scaled = {name: weight / 8 if weight.dim() > 1 else weight for name, weight in load_file(file).items()}
            save_file(scaled, file, {"format": "pt"})
    seal_run(run)
    merged = ["--merge"] if lora else []
    output_of("export", run, tmp_path / "out", *merged, "--dtype", "bfloat16", "--license", "mit")
    assert ModelCard.load(tmp_path / "out" / "README.md").data.license == "mit"
    assert {tensor.dtype for tensor in load_file(tmp_path / "out" / "model.safetensors").values()} == {torch.bfloat16}
    assert (tmp_path / "out" / "model.safetensors").stat().st_mode & 0o044, "others may read it"
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert model.dtype == torch.bfloat16
    expected = load_model(str(run)).model.model.embed_tokens.weight.bfloat16()
    assert torch.equal(model.model.embed_tokens.weight, expected)
