"""`d2e merge`: one model that says what base and adapter say side by side, or no folder at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file

from d2e_sft.hub import merge as module
from d2e_sft.hub.merge import merge
from d2e_sft.model.loading import load_model
from d2e_sft.util.errors import UserError
from tests.command import output_of
from tests.d2e_sft.hub.runs import make_run
from tests.tiny import tiny_model


def test_the_merged_model_has_the_logits_of_base_and_adapter(tmp_path: Path) -> None:
    run, out = make_run(tmp_path, lora=True), tmp_path / "new" / "merged"
    merged = merge(run, out)
    assert merged.dtype == "float32"
    assert merged.difference <= merged.tolerance == 1e-3
    assert merged.base == str(tmp_path / "base")
    assert not (out / "adapter_config.json").exists()
    assert sorted(merged.files) == sorted(str(p.relative_to(out)) for p in out.rglob("*") if p.is_file())
    assert {"recipe.yaml", "tokenizer.json", "prompt_set.yaml"} <= set(merged.files)
    prompt = torch.arange(5, 40)[None]
    beside = PeftModel.from_pretrained(tiny_model(seed=1), str(run)).eval()
    with torch.no_grad():
        expected, found = beside(prompt).logits, load_model(str(out)).model.eval()(prompt).logits
        base = tiny_model(seed=1)(prompt).logits
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3 * expected.abs().max().item())
    assert (expected - base).abs().max() > 1, "the adapter does something"


def test_an_encoder_decoder_is_merged_and_compared_too(tmp_path: Path) -> None:
    merged = merge(make_run(tmp_path, "t5", lora=True), tmp_path / "merged")
    assert 0 <= merged.difference <= merged.tolerance


def test_a_merge_that_changes_the_model_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, out = make_run(tmp_path, lora=True), tmp_path / "merged"
    real = module.export

    def spoilt(*arguments: object) -> list[str]:
        files = real(*arguments)  # type: ignore[arg-type]
        folder = Path(str(arguments[1]))
        tiny_model(seed=1).save_pretrained(folder)  # the base, without the adapter
        return files

    monkeypatch.setattr(module, "export", spoilt)
    with pytest.raises(UserError, match=r"differ from the adapter's by .* expected at most 0.001 in float32"):
        merge(run, out)
    assert not out.exists()
    assert {path.name for path in tmp_path.iterdir()} == {"base", "data", "runs"}


def test_the_command_says_what_was_merged_and_how_equal_it_is(tmp_path: Path) -> None:
    run = make_run(tmp_path, lora=True)
    # Weights of a usual size: in 8 bits of mantissa the sharp ones of the tests are another model.
    for file in (tmp_path / "base" / "model.safetensors", run / "adapter_model.safetensors"):
        save_file(
            {name: weight / 8 if weight.dim() > 1 else weight for name, weight in load_file(file).items()},
            file,
            {"format": "pt"},
        )
    said = output_of("merge", run, "--out", tmp_path / "merged", "--dtype", "bfloat16")
    assert f"into {tmp_path / 'base'}, bfloat16" in said
    assert "logits equal the adapter's: they differ by" in said
    assert json.loads((tmp_path / "merged" / "config.json").read_text())["dtype"] == "bfloat16"
