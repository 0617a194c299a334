"""Names of recipes: a file on the disk, a bundled model with a method, and what is said where there is neither."""

from __future__ import annotations

from pathlib import Path

import pytest

from d2e_sft.config.lookup import (
    bundled_methods,
    bundled_models,
    bundled_parts,
    bundled_recipes,
    compose,
    find_recipe,
    require_recipe,
)
from d2e_sft.config.recipe import load_recipe
from d2e_sft.util.errors import UserError
from d2e_sft.util.paths import bundled


def test_a_bundled_recipe_is_a_models_file_with_a_methods_laid_over_it() -> None:
    source = compose("qwen3-0.6b", "lora")
    root = bundled("recipes")
    assert source.files == (root / "models" / "qwen3-0.6b.yaml", root / "methods" / "lora.yaml")
    assert (source.name, source.words) == ("qwen3-0.6b/lora", ["qwen3-0.6b/lora"])
    recipe = load_recipe(source)
    assert recipe.train.output_dir == "runs/qwen3-0.6b/lora"
    assert recipe.train.learning_rate == 1e-4, "the method's, over the model's"
    assert recipe.train.batch_size == 64, "the model's"
    assert recipe.model.lora is not None


def test_a_method_wins_over_the_model_and_an_override_over_both() -> None:
    assert load_recipe("smollm2-135m/full").train.learning_rate == 5e-5
    assert load_recipe("smollm2-135m/lora").train.learning_rate == 1e-4
    assert load_recipe("smollm2-135m/lora", ["train.learning_rate=3e-4"]).train.learning_rate == 3e-4


def test_a_model_without_a_method_is_trained_in_full() -> None:
    assert load_recipe("qwen3-0.6b") == load_recipe("qwen3-0.6b/full") == load_recipe(compose("qwen3-0.6b"))


def test_every_model_goes_with_every_method() -> None:
    assert len(bundled_recipes()) == len(bundled_models()) * len(bundled_methods())
    for name in bundled_recipes():
        source = find_recipe(name)
        assert source is not None
        assert source.name == name


def test_parts_are_the_files_that_recipes_are_made_of() -> None:
    parts = bundled_parts()
    assert {"recipes/models/qwen3-0.6b.yaml", "recipes/methods/lora.yaml", "recipes/shared/piper-10k.yaml"} <= set(
        parts
    )
    assert not set(parts) & set(bundled_recipes())
    assert all(find_recipe(part) is not None for part in parts)


def test_a_file_here_wins_over_a_bundled_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "methods" / "lora.yaml"
    assert require_recipe("methods/lora.yaml").files == (bundled("recipes") / "methods" / "lora.yaml",)
    file.parent.mkdir()
    file.touch()
    assert require_recipe("methods/lora.yaml").files == (Path("methods/lora.yaml"),)


@pytest.mark.parametrize(
    ("model", "method", "said"),
    [
        (
            "qwen3-0.5b",
            "lora",
            r"--model qwen3-0.5b: no such model. Did you mean 'qwen3-0.6b'\?\n  remedy: choose one of",
        ),
        ("qwen3-0.6b", "loar", r"--method loar: no such method. Did you mean 'lora'\?"),
        ("x", "lora", r"--model x: no such model.\n"),
    ],
)
def test_an_unknown_model_or_method_is_explained(model: str, method: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        compose(model, method)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("qwen3-0.6b/loar", "Did you mean 'qwen3-0.6b/lora'?"),
        ("recipes/qwen3-0.6b/loar.yaml", "Did you mean 'qwen3-0.6b/lora'?"),
        ("recipes/paper/qwen1.5-7b-chat/fll.yaml", "Did you mean 'qwen1.5-7b-chat/full'?"),
        ("recipes/shared/lroa.yaml", "Did you mean 'recipes/methods/lora.yaml'?"),
        ("methods/no-disitl.yaml", "Did you mean 'recipes/methods/no-distill.yaml'?"),
        ("zzz", "zzz: no such recipe."),
    ],
)
def test_an_unknown_name_is_explained(name: str, said: str) -> None:
    with pytest.raises(UserError, match="no such recipe") as refused:
        require_recipe(name)
    assert said in str(refused.value)
