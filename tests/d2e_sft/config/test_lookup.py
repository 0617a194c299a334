"""Names of recipes, and `extends`: which files are read, which of them wins, and errors for anything else."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

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
from d2e_sft.train.checks import check_recipe
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


def test_a_model_without_a_method_is_trained_by_d2e() -> None:
    assert load_recipe("qwen3-0.6b") == load_recipe("qwen3-0.6b/d2e") == load_recipe(compose("qwen3-0.6b"))


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


BASE = """
data: {train: rows.parquet, max_length: 300}
model: {lora: {r: 4, target_modules: [q_proj]}}
train: {output_dir: runs/base, num_train_epochs: 2, learning_rate: 3.0e-5}
"""


def write(folder: Path, **files: str) -> Path:
    """The files NAME.yaml; the last one's path."""
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
    return folder / f"{name}.yaml"


def test_a_recipe_holds_its_own_values_over_those_it_extends(tmp_path: Path) -> None:
    own = write(tmp_path, base=BASE, own="extends: base.yaml\ntrain: {num_train_epochs: 5}\nmodel: {lora: {r: 8}}\n")
    recipe = load_recipe(own)
    assert (recipe.train.num_train_epochs, recipe.train.learning_rate, recipe.data.max_length) == (5, 3e-5, 300)
    assert recipe.model.lora is not None
    assert (recipe.model.lora.r, recipe.model.lora.target_modules) == (8, ["q_proj"])
    own = write(tmp_path, own="extends: base.yaml\nmodel: {lora: {target_modules: [k_proj]}}\n")
    lora = load_recipe(own).model.lora
    assert (lora and lora.target_modules) == ["k_proj"], "a list replaces a list"


def test_of_several_bases_the_later_wins_and_a_base_may_extend_another(tmp_path: Path) -> None:
    own = write(
        tmp_path,
        base=BASE,
        first="extends: base.yaml\nd2e: {alpha: 0.1}\ntrain: {num_train_epochs: 7}\n",
        second="d2e: {alpha: 0.9}\n",
        own="extends: [first.yaml, second.yaml]\n",
    )
    assert (load_recipe(own).d2e.alpha, load_recipe(own).train.num_train_epochs) == (0.9, 7)


@pytest.mark.parametrize(("text", "has_adapter"), [("model: {lora: null}", False), ("model:", True)])
def test_null_takes_a_value_away_and_an_empty_section_says_nothing(
    tmp_path: Path, text: str, has_adapter: bool
) -> None:
    own = write(tmp_path, base=BASE, own=f"extends: base.yaml\n{text}\n")
    assert (load_recipe(own).model.lora is not None) is has_adapter


def test_a_base_is_looked_for_beside_the_file_and_then_among_the_bundled(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    write(tmp_path, base=BASE)
    own = write(tmp_path / "deep", own="extends: [../base.yaml, recipes/methods/sft.yaml]\n")
    assert load_recipe(own).d2e.views == ("original",)


def test_a_bundled_recipe_extends_bundled_files_whatever_lies_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundled = load_recipe("qwen3-0.6b/d2e-qlora")
    (tmp_path / "recipes" / "methods").mkdir(parents=True)
    write(tmp_path / "recipes" / "methods", lora="model: {lora: {r: 1}}\n")
    monkeypatch.chdir(tmp_path)
    assert load_recipe("qwen3-0.6b/d2e-qlora") == bundled


def test_a_base_may_be_a_bundled_recipe(tmp_path: Path) -> None:
    own = write(
        tmp_path, own="extends: [qwen3-0.6b/d2e-lora, recipes/methods/no-distill.yaml]\ntrain: {num_train_epochs: 7}\n"
    )
    recipe = load_recipe(own)
    assert (recipe.train.output_dir, recipe.train.num_train_epochs) == ("runs/qwen3-0.6b/d2e-lora", 7)
    assert recipe.model.lora is not None
    assert recipe.d2e.views == ("original", "imagined")


def test_the_saved_recipe_stands_alone_and_overrides_leave_the_file_as_it_is(tmp_path: Path) -> None:
    own = write(tmp_path, base=BASE, own="extends: base.yaml\ntrain: {num_train_epochs: 5}\n")
    assert load_recipe(own, ["train.num_train_epochs=9", "model.lora=null"]).model.lora is None
    recipe = load_recipe(own)
    assert recipe.model.lora is not None
    recipe.save(tmp_path / "run")
    (tmp_path / "base.yaml").unlink()
    saved = tmp_path / "run" / "recipe.yaml"
    assert load_recipe(saved) == recipe
    assert "extends" not in yaml.safe_load(saved.read_text("utf-8"))


def test_an_override_is_not_blamed_on_a_base_and_cannot_extend(tmp_path: Path) -> None:
    own = write(tmp_path, base=BASE, own="extends: base.yaml\n")
    with pytest.raises(UserError) as refused:
        load_recipe(own, ["train.num_train_epochs=many"])
    assert "which it extends" not in str(refused.value)
    with pytest.raises(UserError, match="what a recipe extends is part of its file"):
        load_recipe(own, ["extends=recipes/methods/d2e-lora.yaml"])
