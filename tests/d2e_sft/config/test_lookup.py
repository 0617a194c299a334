"""Names of recipes: a file on disk, a bundled model with a method, and errors for anything else."""

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
from d2e_sft.train.prepare import check_recipe
from d2e_sft.util.errors import UserError
from d2e_sft.util.paths import bundled


def test_a_bundled_recipe_is_a_models_file_with_a_methods_laid_over_it() -> None:
    source = compose("qwen3-0.6b", "d2e-lora")
    root = bundled("recipes")
    assert source.files == (root / "models" / "qwen3-0.6b.yaml", root / "methods" / "d2e-lora.yaml")
    assert source.name == "qwen3-0.6b/d2e-lora"
    recipe = load_recipe(source)
    assert recipe.train.output_dir == "runs/qwen3-0.6b/d2e-lora"
    assert recipe.train.learning_rate == 1e-4, "the method's, over the model's"
    assert recipe.train.batch_size == 64, "the model's"
    assert recipe.model.lora is not None
    assert load_recipe(source, ["train.learning_rate=3e-4"]).train.learning_rate == 3e-4, "an override, over both"


def test_a_model_without_a_method_is_trained_by_plain_sft() -> None:
    assert load_recipe("qwen3-0.6b") == load_recipe("qwen3-0.6b/sft") == load_recipe(compose("qwen3-0.6b"))


def test_every_model_goes_with_every_method_that_training_accepts() -> None:
    """An adapter on random weights is refused, so it is not listed; typed all the same, it says why."""
    every = {f"{model}/{method}" for model in bundled_models() for method in bundled_methods()}
    assert every - set(bundled_recipes()) == {
        f"t5-base-boxes-random/{method}" for method in ("sft-lora", "sft-qlora", "d2e-lora", "d2e-qlora")
    }
    with pytest.raises(UserError, match=r"weights=random with model\.lora"):
        check_recipe(load_recipe("t5-base-boxes-random/sft-lora"), processes=1)
    for name in bundled_recipes():
        source = find_recipe(name)
        assert source is not None
        assert source.name == name


def test_parts_are_the_files_that_recipes_are_made_of() -> None:
    parts = bundled_parts()
    assert {"recipes/models/qwen3-0.6b.yaml", "recipes/methods/d2e-lora.yaml", "recipes/shared/piper-10k.yaml"} <= set(
        parts
    )
    assert not set(parts) & set(bundled_recipes())
    assert all(find_recipe(part) is not None for part in parts)


def test_a_file_here_wins_over_a_bundled_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "methods" / "d2e-lora.yaml"
    assert require_recipe("methods/d2e-lora.yaml").files == (bundled("recipes") / "methods" / "d2e-lora.yaml",)
    file.parent.mkdir()
    file.touch()
    assert require_recipe("methods/d2e-lora.yaml").files == (Path("methods/d2e-lora.yaml"),)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("qwen3-0.6b/d2e-loar", "Did you mean 'qwen3-0.6b/d2e-lora'?"),
        ("recipes/qwen3-0.6b/d2e-loar.yaml", "Did you mean 'qwen3-0.6b/d2e-lora'?"),
        ("recipes/shared/d2e-lroa.yaml", "Did you mean 'recipes/methods/d2e-lora.yaml'?"),
        ("methods/no-disitl.yaml", "Did you mean 'recipes/methods/no-distill.yaml'?"),
        ("zzz", "zzz: no such recipe."),
    ],
)
def test_an_unknown_name_is_explained(name: str, said: str) -> None:
    with pytest.raises(UserError, match="no such recipe") as refused:
        require_recipe(name)
    assert said in str(refused.value)
