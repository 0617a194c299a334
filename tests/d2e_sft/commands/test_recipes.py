"""`d2e recipes`: what is listed, shown and copied."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from d2e_sft.config.lookup import bundled_methods, bundled_models, bundled_recipes
from d2e_sft.config.recipe import Recipe, load_recipe
from d2e_sft.util.paths import bundled
from tests.command import output_of, refusal_of


def test_models_and_methods_are_listed_on_a_screen_and_every_recipe_has_a_title() -> None:
    lines = output_of("recipes", "list").splitlines()
    assert len(lines) < 50
    names = [line.split()[0] for line in lines if "  " in line]
    assert names == ["model", *bundled_models(), "method", *bundled_methods()]
    listed = re.sub(r"\n {20,}", " ", output_of("recipes", "list", "/")).splitlines()[1:]
    assert [line.split()[0] for line in listed] == bundled_recipes()
    assert len({line.split(maxsplit=1)[1] for line in listed}) == len(listed), "each file begins with a comment"


def test_words_narrow_the_list_and_parts_are_listed_when_asked_for() -> None:
    names = [line.split()[0] for line in output_of("recipes", "list", "gemma-3", "QLORA").splitlines()[1:]]
    assert names == [f"gemma-3-{size}/{method}-qlora" for size in ("1b", "270m") for method in ("d2e", "sft")]
    listed = output_of("recipes", "list", "--parts", "methods/")
    assert "recipes/methods/d2e-lora.yaml " in listed
    assert "qwen3-0.6b/" not in listed


def test_a_file_is_shown_as_it_is_and_a_composed_recipe_as_one() -> None:
    file = bundled("recipes") / "methods" / "d2e-lora.yaml"
    assert output_of("recipes", "show", "recipes/methods/d2e-lora.yaml") == file.read_text("utf-8")
    name = "qwen3-0.6b/d2e-lora"
    shown = output_of("recipes", "show", name)
    assert shown.startswith("# Qwen3-0.6B: D²E-SFT by LoRA\n")
    content = yaml.safe_load(shown)
    assert list(content) == ["model", "data", "d2e", "train", "eval"]
    assert "seed" not in content["train"], "a default"
    assert Recipe.model_validate(content) == load_recipe(name)
    assert yaml.safe_load(output_of("recipes", "show", name, "--resolved")) == load_recipe(name).model_dump()


@pytest.mark.parametrize("options", [[], ["--resolved"]])
def test_a_copy_is_the_same_recipe_and_can_be_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    name = "smollm2-360m/d2e-qlora"
    expected = load_recipe(name)
    monkeypatch.chdir(tmp_path)
    output_of("recipes", "copy", name, *options)
    copy = tmp_path / "smollm2-360m-d2e-qlora.yaml"
    assert "extends" not in yaml.safe_load(copy.read_text("utf-8")), "it stands alone"
    assert load_recipe(copy) == expected
    copy.write_text(copy.read_text("utf-8").replace(expected.train.output_dir, "runs/mine"))
    assert load_recipe(copy).train.output_dir == "runs/mine"


def test_a_copy_goes_where_it_is_told_and_replaces_nothing(tmp_path: Path) -> None:
    name, other = "smollm2-135m-quickstart/sft", tmp_path / "new" / "mine.yaml"
    copy = tmp_path / "smollm2-135m-quickstart-sft.yaml"
    output_of("recipes", "copy", name, tmp_path)
    output_of("recipes", "copy", name, other)
    assert copy.read_text() == other.read_text()
    copy.write_text("mine")
    assert "already exists" in refusal_of("recipes", "copy", name, tmp_path)
    assert copy.read_text() == "mine"
    output_of("recipes", "copy", name, tmp_path, "--overwrite")
    assert copy.read_text() != "mine"
