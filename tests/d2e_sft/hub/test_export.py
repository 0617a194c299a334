"""`d2e export`: what is in the folder, and that it is there whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, GenerationConfig

from d2e_sft.cli import d2e, main
from d2e_sft.config.recipe import load_recipe
from d2e_sft.hub.export import ExportOptions, export, exported_files
from d2e_sft.model.loading import load_model
from tests.d2e_sft.hub.runs import make_run, write_scores
from tests.tiny import tiny_model


def _error(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(["export", *map(str, arguments)])
    assert stopped.value.code == 1
    message = capsys.readouterr().err
    assert "Traceback" not in message
    assert "remedy:" in message
    return message


def test_the_folder_holds_all_that_the_model_is(tmp_path: Path) -> None:
    run, out = make_run(tmp_path), tmp_path / "exports" / "tiny"
    write_scores(run)
    (run / "notes.txt").write_text("mine")
    (run / "training_args.bin").write_bytes(b"pickled")
    result = CliRunner().invoke(d2e, ["export", str(run), str(out)])
    assert result.exit_code == 0, result.output
    found = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert found == {
        "README.md", "chat_template.jinja", "config.json", "custom_generate/generate.py", "d2e_export.json",
        "eval/mini/scores.json", "generation_config.json", "model.safetensors", "prompt_set.yaml", "recipe.yaml",
        "tokenizer.json", "tokenizer_config.json",
    }  # fmt: skip
    assert exported_files(out) == sorted(found)
    assert (out / "model.safetensors").read_bytes() == (run / "model.safetensors").read_bytes()
    assert f"exported {len(found)} files: {out}" in result.output


def test_nothing_in_it_names_a_path_of_this_machine(tmp_path: Path) -> None:
    run, out = make_run(tmp_path), tmp_path / "out"
    write_scores(run)
    export(run, out)
    for path in out.rglob("*"):
        if path.is_file() and path.suffix != ".safetensors":
            assert str(tmp_path) not in path.read_text(), path
    assert load_recipe(out / "recipe.yaml").data.train == "data/train.parquet"
    assert json.loads((out / "eval/mini/scores.json").read_text())["model"] == "runs/tiny"


def test_the_generation_config_stops_where_answers_ended_in_training(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    GenerationConfig(eos_token_id=9, temperature=0.3, do_sample=True).save_pretrained(run)
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, "use_cache": False}))
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


def test_an_adapter_stays_one_unless_it_is_merged(tmp_path: Path) -> None:
    run = make_run(tmp_path, lora=True)
    result = CliRunner().invoke(d2e, ["export", str(run), str(tmp_path / "out")])
    assert "has no name on the Hub; for use elsewhere, add --merge" in result.stderr
    assert "Its base model has no name on the Hub" in (tmp_path / "out" / "README.md").read_text()
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        assert (tmp_path / "out" / name).read_bytes() == (run / name).read_bytes()
    assert not (tmp_path / "out" / "model.safetensors").exists()
    assert (tmp_path / "out" / "generation_config.json").is_file()


@pytest.mark.parametrize("lora", [False, True])
def test_the_dtype_of_the_weights_can_be_chosen(tmp_path: Path, lora: bool) -> None:
    run = make_run(tmp_path, lora=lora)
    result = CliRunner().invoke(d2e, ["export", str(run), str(tmp_path / "out"), "--merge", "--dtype", "bfloat16"])
    assert result.exit_code == 0, result.output
    assert {tensor.dtype for tensor in load_file(tmp_path / "out" / "model.safetensors").values()} == {torch.bfloat16}
    assert (tmp_path / "out" / "model.safetensors").stat().st_mode & 0o044, "others may read it"
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert model.dtype == torch.bfloat16
    expected = load_model(str(run)).model.model.embed_tokens.weight.bfloat16()
    assert torch.equal(model.model.embed_tokens.weight, expected)


def test_an_export_is_a_model_to_this_package_too(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    export(run, tmp_path / "out")
    original, exported = (load_model(str(folder)).model.state_dict() for folder in (run, tmp_path / "out"))
    assert all(torch.equal(original[name], exported[name]) for name in original)
    export(tmp_path / "out", tmp_path / "again")
    assert (tmp_path / "again" / "README.md").is_file()


def test_a_checkpoint_of_a_run_is_exported_with_the_runs_recipe_and_its_own_scores(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    checkpoint = run / "checkpoint-3"
    checkpoint.mkdir()
    for path in list(run.iterdir()):
        if path.is_file() and path.name != "recipe.yaml":
            path.rename(checkpoint / path.name)
    write_scores(run, "of-the-run")
    write_scores(checkpoint, "of-the-checkpoint")
    export(checkpoint, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out" / "eval").iterdir()] == ["of-the-checkpoint"]
    assert (tmp_path / "out" / "recipe.yaml").is_file()
    assert "# tiny-checkpoint-3\n" in (tmp_path / "out" / "README.md").read_text()


def test_a_failure_leaves_no_folder_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path)
    write_scores(run)
    (run / "eval" / "mini" / "scores.json").write_text('{"groups": 1}')
    before = sorted(tmp_path.iterdir())
    assert "scores.json: no scores of `d2e eval`" in _error(capsys, run, tmp_path / "out")
    assert sorted(tmp_path.iterdir()) == before


def test_a_folder_that_holds_something_is_not_touched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, out = make_run(tmp_path), tmp_path / "out"
    out.mkdir()
    export(run, out)  # an empty one may be there
    (out / "README.md").write_text("edited")
    assert f"{out}: already exists; expected a new folder" in _error(capsys, run, out)
    assert (out / "README.md").read_text() == "edited"


def test_what_is_no_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "missing: no such folder; expected a run" in _error(capsys, tmp_path / "missing", tmp_path / "out")
    (tmp_path / "plain").mkdir()
    assert "holds no recipe.yaml, so it is no run" in _error(capsys, tmp_path / "plain", tmp_path / "out")
    run = make_run(tmp_path)
    (run / "config.json").unlink()
    assert "the folder holds no model" in _error(capsys, run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_adapter_on_its_own_keeps_its_dtype(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path, lora=True)
    assert "--dtype float16" in _error(capsys, run, tmp_path / "out", "--dtype", "float16")
