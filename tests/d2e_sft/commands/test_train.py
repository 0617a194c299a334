"""`d2e train`: the recipe that it trains, the processes that it starts, and the calls that it refuses."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from transformers import TrainingArguments

from d2e_sft.config.recipe import D2ESection, Recipe, load_recipe
from d2e_sft.data.sample import write_samples
from d2e_sft.train import launch
from d2e_sft.train import run as train
from d2e_sft.train.config import D2EConfig
from d2e_sft.train.data_record import DATA_FILE, DataRecord, DataSource
from tests.command import d2e
from tests.tiny import make_samples


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path, rows = tmp_path / "recipe.yaml", tmp_path / "rows.jsonl"
    write_samples(make_samples(8), rows)
    path.write_text(f"data: {{train: {rows}}}\ntrain: {{output_dir: {tmp_path / 'run'}}}\n", encoding="utf-8")
    return path


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Recipe, bool]]:
    """The recipes that were trained, and whether they were resumed; nothing is done."""
    calls: list[tuple[Recipe, bool]] = []

    def record(loaded: Recipe, *, resume: bool, overwrite: bool) -> Path:
        calls.append((loaded, resume))
        return Path(loaded.train.output_dir)

    monkeypatch.setattr(train, "train_recipe", record)
    return calls


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that were launched on a machine with eight accelerators; nothing is started."""
    commands: list[list[str]] = []
    monkeypatch.setattr(launch, "accelerators", lambda: 8)
    monkeypatch.setattr(launch, "launch", lambda command: commands.append(command) or 0)
    monkeypatch.setattr(subprocess, "Popen", None)
    return commands


@pytest.mark.parametrize("begun", [False, True])
def test_auto_resume_continues_a_run_that_was_begun_and_begins_another(
    recipe: Path, begun: bool, trained: list[tuple[Recipe, bool]], launched: list[list[str]]
) -> None:
    if begun:
        loaded, run = load_recipe(recipe), recipe.parent / "run"
        loaded.save(run)
        begun_on = DataRecord(source=DataSource.of(loaded), samples=8, tokens_sha256="", processes=1, versions={})
        (run / DATA_FILE).write_text(begun_on.model_dump_json(), encoding="utf-8")
    assert d2e("train", recipe, "--auto-resume") == 0
    assert [resume for _, resume in trained] == [begun]
    assert d2e("train", recipe, "--auto-resume", "--launch", "ddp") == 0
    assert ("--resume" in launched[0]) is begun, "decided once for all processes"
    assert "--auto-resume" not in launched[0]
    if begun:  # and finished since
        (run / "trainer_state.json").write_text("{}")
        assert d2e("train", recipe, "--auto-resume") == 0
        assert len(trained) == 1, "there is nothing left to train"
        assert d2e("train", recipe, "--auto-resume", "train.seed=9") == 0
        assert len(trained) == 2, "another recipe is refused where it is compared"


@pytest.mark.parametrize(
    ("words", "name", "overrides"),
    [
        ("--model qwen3-0.6b --method d2e-lora train.seed=1 d2e.alpha=0.7", "qwen3-0.6b/d2e-lora", True),
        ("train.seed=1 --model qwen3-0.6b d2e.alpha=0.7 --method d2e-lora", "qwen3-0.6b/d2e-lora", True),
        ("qwen3-0.6b/d2e-lora train.seed=1 d2e.alpha=0.7", "qwen3-0.6b/d2e-lora", True),
        ("--model qwen3-0.6b", "qwen3-0.6b/d2e", False),
    ],
)
def test_a_model_and_a_method_are_one_recipe(
    trained: list[tuple[Recipe, bool]], words: str, name: str, overrides: bool
) -> None:
    assert d2e("train", *words.split()) == 0
    assert trained == [(load_recipe(name, ["train.seed=1", "d2e.alpha=0.7"] if overrides else []), False)]


def test_d2e_is_trained_wherever_no_objective_is_named(recipe: Path, trained: list[tuple[Recipe, bool]]) -> None:
    assert d2e("train", "--model", "qwen3-0.6b") == d2e("train", recipe) == 0
    published = D2ESection(objective="d2e", debias=True, distill=True, alpha=0.5)
    assert [loaded.d2e for loaded, _ in trained] == [published, published]
    arguments = TrainingArguments(output_dir=str(recipe.parent), use_cpu=True)
    assert D2EConfig(str(recipe.parent)).d2e == D2EConfig.of(arguments).d2e == published


def test_launched_processes_are_given_one_name_for_a_model_and_a_method(
    recipe: Path, launched: list[list[str]]
) -> None:
    overrides = (f"data.train={recipe.parent / 'rows.jsonl'}", "train.output_dir=runs/d2e-mini")
    words = ("--model", "smollm2-135m-mini", "--method", "d2e", *overrides)
    assert d2e("train", *words, "--launch", "ddp", "--processes", "2") == 0
    assert launched[0][-3:] == ["smollm2-135m-mini/d2e", *overrides]
