"""Paths of earlier versions, a file for each model and method: the same recipe under its new name, and a warning."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from d2e_sft import cli
from d2e_sft.config.lookup import _warn_of_new_name, compose, require_recipe
from d2e_sft.config.recipe import Recipe, load_recipe

_TABLE = (Path(__file__).parent / "earlier_paths.txt").read_text("utf-8").splitlines()[1:]
EARLIER = dict(line.split() for line in _TABLE)


@pytest.fixture(autouse=True)
def each_test_is_warned_anew() -> None:
    _warn_of_new_name.cache_clear()


def digest(recipe: Recipe) -> str:
    return hashlib.sha256(json.dumps(recipe.model_dump(exclude_defaults=True), sort_keys=True).encode()).hexdigest()


@pytest.mark.parametrize("path", EARLIER)
def test_an_earlier_path_is_the_same_recipe_and_says_its_new_name(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = load_recipe(path)
    assert digest(recipe) == EARLIER[path]
    said = capsys.readouterr().err
    name, *overrides = require_recipe(path).words
    assert said.startswith(f"d2e: warning: {path} is now {name}: d2e train --model ")
    assert load_recipe(name, overrides) == recipe, "the call that is named"
    assert load_recipe(path.removeprefix("recipes/")) == recipe
    own = tmp_path / "own.yaml"
    own.write_text(f"extends: {path}\n", encoding="utf-8")
    assert load_recipe(own) == recipe


@pytest.mark.parametrize("method", ["lora", "qlora", "sft", "no-debias", "no-distill"])
def test_an_earlier_part_is_a_method_now(method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    today = f"recipes/methods/{'d2e-' if 'lora' in method else ''}{method}.yaml"
    (tmp_path / "before.yaml").write_text(f"extends: [qwen3-0.6b/d2e, recipes/shared/{method}.yaml]\n")
    (tmp_path / "now.yaml").write_text(f"extends: [qwen3-0.6b/d2e, {today}]\n")
    assert load_recipe(tmp_path / "before.yaml") == load_recipe(tmp_path / "now.yaml")
    said = capsys.readouterr().err
    assert said == f"d2e: warning: recipes/shared/{method}.yaml is now {today}\n"


@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
def test_an_earlier_method_is_the_one_that_says_its_objective(method: str, capsys: pytest.CaptureFixture[str]) -> None:
    today = {"full": "d2e", "lora": "d2e-lora", "qlora": "d2e-qlora"}[method]
    recipe = load_recipe(f"qwen3-0.6b/{method}")
    plain = today.replace("d2e", "sft")
    said = f"d2e: warning: qwen3-0.6b/{method} is now qwen3-0.6b/{today} (plain SFT: qwen3-0.6b/{plain})\n"
    assert capsys.readouterr().err == said
    assert recipe == load_recipe(f"qwen3-0.6b/{today}", [f"train.output_dir=runs/qwen3-0.6b/{method}"])
    assert recipe == load_recipe(compose("qwen3-0.6b", method))
    assert not capsys.readouterr().err, "once"


def test_the_call_of_the_warning_is_one_that_can_be_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    path = "recipes/smollm2-135m/d2e-mini.yaml"
    with pytest.raises(SystemExit):
        cli.main(["train", path])
    warning, *error = capsys.readouterr().err.splitlines()
    call = warning.partition(": d2e ")[2] or warning.partition("d2e train ")[2]
    assert call.startswith("train ")
    with pytest.raises(SystemExit):
        cli.main(call.split())
    assert capsys.readouterr().err.splitlines() == error, "that its data are missing, and no warning"


def test_one_process_of_many_warns_and_warns_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        load_recipe("recipes/qwen3-0.6b/lora.yaml")
    assert len(capsys.readouterr().err.splitlines()) == 1
    _warn_of_new_name.cache_clear()
    monkeypatch.setenv("LOCAL_RANK", "1")
    load_recipe("recipes/qwen3-0.6b/lora.yaml")
    assert not capsys.readouterr().err


def test_a_file_of_that_path_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "recipes" / "qwen3-0.6b" / "lora.yaml"
    path.parent.mkdir(parents=True)
    path.write_text("extends: qwen3-0.6b/d2e-lora\ntrain: {output_dir: runs/mine}\n", encoding="utf-8")
    assert load_recipe("recipes/qwen3-0.6b/lora.yaml").train.output_dir == "runs/mine"
    assert not capsys.readouterr().err


def test_a_path_into_the_clone_is_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from d2e_sft.util.paths import bundled

    monkeypatch.chdir(bundled("recipes") / "models")
    expected = load_recipe("qwen3-0.6b/d2e-lora", ["train.output_dir=runs/qwen3-0.6b/lora"])
    assert load_recipe("../qwen3-0.6b/lora.yaml") == expected
    monkeypatch.chdir(tmp_path)
    assert load_recipe(bundled("recipes") / "qwen3-0.6b" / "lora.yaml") == expected
