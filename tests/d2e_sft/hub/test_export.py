"""`d2e export`: what is in the folder, and that it is there whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

from d2e_sft.config.recipe import load_recipe
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.hub.export import export, exported_files
from d2e_sft.model.loading import load_model
from d2e_sft.train.data_record import trained_wording
from tests.command import output_of, refusal_of
from tests.d2e_sft.hub.runs import content_of, make_run, write_data_record, write_scores
from tests.factories import seal_run


def test_the_folder_holds_all_that_the_model_is(tmp_path: Path) -> None:
    run, out = make_run(tmp_path), tmp_path / "exports" / "tiny"
    write_scores(run)
    write_data_record(run, "neutral")
    (run / "notes.txt").write_text("mine")
    (run / "training_args.bin").write_bytes(b"pickled")
    output = output_of("export", run, out)
    found = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert found == {
        "README.md", "chat_template.jinja", "checksums.json", "config.json", "custom_generate/generate.py",
        "d2e_export.json", "data.json",
        "eval/mini/scores.json", "generation_config.json", "model.safetensors", "prompt_set.yaml", "recipe.yaml",
        "tokenizer.json", "tokenizer_config.json",
    }  # fmt: skip
    assert exported_files(out) == sorted(found)
    assert (out / "model.safetensors").read_bytes() == (run / "model.safetensors").read_bytes()
    assert f"exported {len(found)} files: {out}" in output
    assert load_prompt_set(str(out / "prompt_set.yaml")).name == "neutral", "as its rows were worded"
    assert trained_wording(str(out), "default") == "neutral", "which chat and demo take"


def test_nothing_in_it_names_a_path_of_this_machine(tmp_path: Path) -> None:
    run, out = make_run(tmp_path), tmp_path / "out"
    write_scores(run)
    write_data_record(run)
    export(run, out)
    for path in out.rglob("*"):
        if path.is_file() and path.suffix != ".safetensors":
            assert str(tmp_path) not in path.read_text(), path
    assert load_recipe(out / "recipe.yaml").data.train == "data/train.parquet"
    assert json.loads((out / "eval/mini/scores.json").read_text())["model"] == "runs/tiny"


def test_an_export_is_a_run_to_this_package_too(tmp_path: Path) -> None:
    export(make_run(tmp_path), tmp_path / "out")
    export(tmp_path / "out", tmp_path / "again")
    assert (tmp_path / "again" / "README.md").is_file()
    assert load_model(str(tmp_path / "again")).model.config.model_type == "llama"


def test_a_checkpoint_of_a_run_is_exported_with_the_runs_recipe_and_its_own_scores(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    checkpoint = run / "checkpoint-3"
    checkpoint.mkdir()
    for path in list(run.iterdir()):
        if path.is_file() and path.name != "recipe.yaml":
            path.rename(checkpoint / path.name)
    seal_run(checkpoint)
    write_scores(run, "of-the-run")
    write_scores(checkpoint, "of-the-checkpoint")
    export(checkpoint, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out" / "eval").iterdir()] == ["of-the-checkpoint"]
    assert (tmp_path / "out" / "recipe.yaml").is_file()
    assert "# tiny-checkpoint-3\n" in (tmp_path / "out" / "README.md").read_text()


def test_only_an_earlier_export_is_replaced_and_only_if_asked(tmp_path: Path) -> None:
    run, out = make_run(tmp_path), tmp_path / "out"
    output_of("export", run, out)
    first = content_of(out)
    (out / "eval").mkdir()
    (out / "eval" / "mine").write_text("of the earlier export")
    before = content_of(tmp_path)
    assert "out: already exists; expected a new folder" in (said := refusal_of("export", run, out))
    assert "add --overwrite" in said
    assert "is in " in refusal_of("export", out, out, "--overwrite")
    assert content_of(tmp_path) == before
    output_of("export", run, out, "--overwrite")
    assert content_of(out) == first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "out", "runs"]


def test_a_failure_leaves_no_folder_behind(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    write_scores(run, groups=1)
    before = sorted(tmp_path.iterdir())
    assert "scores.json: not the scores of `d2e eval`" in refusal_of("export", run, tmp_path / "out")
    assert sorted(tmp_path.iterdir()) == before
