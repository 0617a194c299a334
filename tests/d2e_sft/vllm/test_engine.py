"""What is handed to vLLM for a model's name; no vLLM needed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from peft import LoraConfig, get_peft_model

from d2e_sft.commands.serve import serve
from d2e_sft.model.loading import load_model
from d2e_sft.util.errors import UserError
from d2e_sft.vllm.engine import model_folder
from tests.tiny import save_tiny_model


def _adapter(folder: Path, base: Path, seed: int) -> Path:
    torch.manual_seed(seed)
    config = LoraConfig(r=2, init_lora_weights=False, task_type="CAUSAL_LM", target_modules=["q_proj", "v_proj"])
    get_peft_model(load_model(str(base)).model, config).save_pretrained(folder)
    return folder


def test_a_folder_is_given_as_it_is(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "model")
    assert model_folder(str(folder)) == str(folder)


def test_an_adapter_is_merged_once_and_again_when_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("D2E_CACHE", str(tmp_path / "cache"))
    base = save_tiny_model(tmp_path / "base")
    adapter = _adapter(tmp_path / "adapter", base, seed=1)
    merged = model_folder(str(adapter))
    tokens = torch.arange(5, 25)[None]
    with torch.inference_mode():
        torch.testing.assert_close(
            load_model(merged).model(tokens).logits, load_model(str(adapter)).model(tokens).logits
        )
    assert (Path(merged) / "tokenizer_config.json").is_file()
    written = (Path(merged) / "config.json").stat().st_mtime_ns
    assert model_folder(str(adapter)) == merged
    assert (Path(merged) / "config.json").stat().st_mtime_ns == written
    assert model_folder(str(_adapter(adapter, base, seed=2))) != merged


def test_an_encoder_decoder_is_refused(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "t5", "t5")
    with pytest.raises(UserError, match="encoder-decoder"):
        model_folder(str(folder))


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed here")
def test_without_vllm_the_message_says_what_to_install() -> None:
    with pytest.raises(UserError, match=r"d2e-sft\[vllm\]"):
        importlib.import_module("d2e_sft.vllm.offline")
    result = CliRunner().invoke(serve, ["some/model"])
    assert "d2e-sft[vllm]" in str(result.exception)
