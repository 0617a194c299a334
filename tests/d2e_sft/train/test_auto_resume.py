"""`d2e train --auto-resume`: a job that may be started several times runs one command."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from d2e_sft import cli
from d2e_sft.config.recipe import load_recipe
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
