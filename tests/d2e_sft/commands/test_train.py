"""`d2e train`: what it trains, and `--auto-resume` for jobs that may be started several times with one command."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from d2e_sft import cli
from d2e_sft.config.recipe import Recipe, load_recipe
from d2e_sft.train import launch
from d2e_sft.train import run as train


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(f"data: {{train: rows.parquet}}\ntrain: {{output_dir: {tmp_path / 'run'}}}\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("begun", [False, True])
def test_it_continues_a_run_that_was_begun_and_begins_another(
    recipe: Path, begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def trained(loaded: Any, *, resume: bool, overwrite: bool) -> Path:
        asked.append(resume)
        return recipe.parent

    monkeypatch.setattr(train, "train_recipe", trained)
    if begun:
        load_recipe(recipe).save(recipe.parent / "run")
    cli.main(["train", str(recipe), "--auto-resume"])
    assert asked == [begun]


@pytest.mark.parametrize("begun", [False, True])
def test_a_launcher_decides_once_for_all_its_processes(
    recipe: Path, begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(launch, "accelerators", lambda: 8)
    monkeypatch.setattr(launch, "launch", lambda command: commands.append(command) or 0)
    monkeypatch.setattr(subprocess, "Popen", None)
    if begun:
        load_recipe(recipe).save(recipe.parent / "run")
    with pytest.raises(SystemExit) as stop:
        cli.main(["train", str(recipe), "--auto-resume", "--launch", "ddp"])
    assert stop.value.code == 0
    assert ("--resume" in commands[0]) is begun
    assert "--auto-resume" not in commands[0]


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[Recipe]:
    """The recipes that were trained, with nothing done."""
    recipes: list[Recipe] = []

    def record(loaded: Recipe, **_: bool) -> Path:
        recipes.append(loaded)
        return Path(loaded.train.output_dir)

    monkeypatch.setattr(train, "train_recipe", record)
    return recipes


@pytest.mark.parametrize(
    "words",
    [
        ["--model", "qwen3-0.6b", "--method", "d2e-lora", "train.num_train_epochs=1", "d2e.alpha=0.7"],
        ["train.num_train_epochs=1", "--model", "qwen3-0.6b", "d2e.alpha=0.7", "--method", "d2e-lora"],
        ["qwen3-0.6b/d2e-lora", "train.num_train_epochs=1", "d2e.alpha=0.7"],
    ],
)
def test_a_model_and_a_method_are_one_recipe(trained: list[Recipe], words: list[str]) -> None:
    cli.main(["train", *words])
    assert trained == [load_recipe("qwen3-0.6b/d2e-lora", ["train.num_train_epochs=1", "d2e.alpha=0.7"])]


def test_a_model_alone_is_trained_by_plain_sft(trained: list[Recipe]) -> None:
    cli.main(["train", "--model", "qwen3-0.6b"])
    assert trained == [load_recipe("qwen3-0.6b/sft")]


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--model", "qwen3-0.5b"], 1, "--model qwen3-0.5b: no such model. Did you mean 'qwen3-0.6b'?"),
        (["--model", "qwen3-0.6b", "--method", "d2e-loar"], 1, "d2e-loar: no such method. Did you mean 'd2e-lora'?"),
        (["--method", "d2e-lora"], 1, "--method d2e-lora: needs --model NAME"),
        (
            ["mine.yaml", "--model", "qwen3-0.6b"],
            1,
            "mine.yaml: expected SECTION.KEY=VALUE, since --model qwen3-0.6b is the recipe",
        ),
        (["mine.yaml", "--method", "d2e-lora"], 1, "`extends: [RECIPE, recipes/methods/d2e-lora.yaml]`"),
        ([], 2, "Missing argument 'RECIPE', or --model NAME."),
    ],
)
def test_a_call_that_names_no_recipe_or_two_is_explained(
    words: list[str], status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["train", *words])
    assert stop.value.code == status
    assert said in capsys.readouterr().err


def test_the_launched_processes_are_given_the_recipe_by_its_new_name(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(launch, "launch", lambda command: commands.append(command) or 0)
    for words in (
        ["--model", "smollm2-135m-mini", "--method", "d2e", "train.output_dir=runs/d2e-mini"],
        ["recipes/smollm2-135m/d2e-mini.yaml"],
    ):
        with pytest.raises(SystemExit):
            cli.main(["train", *words, "--launch", "ddp", "--processes", "2"])
        assert commands[-1][-2:] == ["smollm2-135m-mini/d2e", "train.output_dir=runs/d2e-mini"]
