"""`d2e recipes`: what is listed, shown and copied."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from d2e_sft import cli
from d2e_sft.config.lookup import bundled_recipes
from d2e_sft.config.recipe import Recipe, load_recipe
from d2e_sft.util.paths import bundled


def test_every_recipe_is_listed_with_its_title(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["recipes", "list"])
    lines = re.sub(r"\n {20,}", " ", capsys.readouterr().out).splitlines()  # a long title goes on below
    assert [line.split()[0] for line in lines] == bundled_recipes()
    assert all(re.search(r"  \S.*: \S", line) for line in lines), "each file begins with a comment"
    assert len({line.split(maxsplit=1)[1] for line in lines}) == len(lines)


def test_words_narrow_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["recipes", "list", "gemma", "QLORA"])
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert names == [f"gemma-3-{size}/{method}-qlora" for size in ("1b", "270m") for method in ("d2e", "sft")]


def test_parts_are_listed_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["recipes", "list", "--parts", "methods/"])
    listed = capsys.readouterr().out
    assert "recipes/methods/d2e-lora.yaml " in listed
    assert "qwen3-0.6b/" not in listed


def test_a_file_is_shown_as_it_is_and_a_composed_recipe_as_one(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["recipes", "show", "recipes/methods/d2e-lora.yaml"])
    assert capsys.readouterr().out == (bundled("recipes") / "methods" / "d2e-lora.yaml").read_text("utf-8")
    name = "qwen3-0.6b/d2e-lora"
    cli.main(["recipes", "show", name])
    shown = capsys.readouterr().out
    assert shown.startswith("# Qwen3-0.6B: D²E-SFT by LoRA\n")
    content = yaml.safe_load(shown)
    assert list(content) == ["model", "data", "d2e", "train", "eval"]
    assert "seed" not in content["train"], "a default"
    assert Recipe.model_validate(content) == load_recipe(name)
    cli.main(["recipes", "show", name, "--resolved"])
    assert yaml.safe_load(capsys.readouterr().out) == load_recipe(name).model_dump()


@pytest.mark.parametrize("options", [[], ["--resolved"]])
def test_a_copy_is_the_same_recipe_and_can_be_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    name = "smollm2-360m/d2e-qlora"
    expected = load_recipe(name)
    monkeypatch.chdir(tmp_path)
    cli.main(["recipes", "copy", name, *options])
    copy = tmp_path / "smollm2-360m-d2e-qlora.yaml"
    assert "extends" not in yaml.safe_load(copy.read_text("utf-8")), "it stands alone"
    assert load_recipe(copy) == expected
    copy.write_text(copy.read_text("utf-8").replace(expected.train.output_dir, "runs/mine"))
    assert load_recipe(copy).train.output_dir == "runs/mine"


def test_a_copy_goes_where_it_is_told_and_replaces_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "smollm2-135m-quickstart/sft"
    cli.main(["recipes", "copy", name, str(tmp_path)])
    cli.main(["recipes", "copy", name, str(tmp_path / "new" / "mine.yaml")])
    assert (tmp_path / "smollm2-135m-quickstart-sft.yaml").read_text() == (tmp_path / "new" / "mine.yaml").read_text()
    (tmp_path / "smollm2-135m-quickstart-sft.yaml").write_text("mine")
    with pytest.raises(SystemExit):
        cli.main(["recipes", "copy", name, str(tmp_path)])
    assert "already exists" in capsys.readouterr().err
    assert (tmp_path / "smollm2-135m-quickstart-sft.yaml").read_text() == "mine"
    cli.main(["recipes", "copy", name, str(tmp_path), "--overwrite"])
    assert (tmp_path / "smollm2-135m-quickstart-sft.yaml").read_text() != "mine"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["show", "qwen3-0.6b/d2e-loar"], "Did you mean 'qwen3-0.6b/d2e-lora'?"),
        (["list", "gpt-5"], "no bundled recipe has 'gpt-5'"),
    ],
)
def test_an_unknown_name_is_explained(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["recipes", *arguments])
    assert stop.value.code == 1
    assert said in capsys.readouterr().err
