"""What is handed to vLLM for a model's name, and which token is the sentinel; no vLLM needed."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken

from d2e_sft.commands.serve import serve
from d2e_sft.model.loading import load_model
from d2e_sft.util.errors import UserError
from d2e_sft.vllm.engine import choose_sentinel, model_folder
from d2e_sft.vllm.offline import load_llm
from tests.tiny import VOCAB_SIZE, save_tiny_model, tiny_tokenizer, with_lora


def _adapter(folder: Path, base: Path, seed: int) -> Path:
    with_lora(load_model(str(base)).model, seed, r=2).save_pretrained(folder)
    return folder


def test_weights_that_are_no_numbers_are_refused_before_vllm_loads_them(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    name = sorted(weights)[-1]
    weights[name].view(-1)[-1] = float("nan")
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=f"the weight {re.escape(name)} contains NaN or infinity"):
        model_folder(str(folder))


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
        load_llm("some/model")
    result = CliRunner().invoke(serve, ["--engine", "vllm", "some/model"])
    assert "d2e-sft[vllm]" in str(result.exception)


def test_the_sentinel_is_a_row_without_a_token_then_an_unused_one_then_one_that_no_template_writes() -> None:
    tokenizer = tiny_tokenizer()
    assert choose_sentinel(tokenizer, VOCAB_SIZE + 8, {1}) == VOCAB_SIZE + 7
    tokenizer.add_special_tokens({"additional_special_tokens": [AddedToken("<|spare|>", special=True)]})
    spare = tokenizer.convert_tokens_to_ids("<|spare|>")
    assert choose_sentinel(tokenizer, len(tokenizer), {1}) == spare
    assert choose_sentinel(tokenizer, len(tokenizer), {1, spare}) not in {1, spare}
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|reserved_token_0|>", "<|tool|>"]})
    assert choose_sentinel(tokenizer, len(tokenizer), {1}) == tokenizer.convert_tokens_to_ids("<|reserved_token_0|>")


def test_a_vocabulary_without_a_free_token_is_refused_with_the_way_out() -> None:
    tokenizer = tiny_tokenizer()
    with pytest.raises(UserError, match="no special token besides"):
        choose_sentinel(tokenizer, VOCAB_SIZE, set(range(VOCAB_SIZE)))
