"""`d2e recipes`: what is listed, shown and copied."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from d2e_sft import cli
from d2e_sft.config.recipe import load_recipe
from d2e_sft.util.paths import bundled, bundled_recipes


def test_every_recipe_is_listed_with_its_first_line(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["recipes", "list"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == bundled_recipes()
    assert all(len(line.split(maxsplit=1)) == 2 for line in lines), "each file begins with a comment"


def test_words_narrow_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["recipes", "list", "gemma", "QLORA"])
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert names == ["recipes/gemma-3-1b/qlora.yaml", "recipes/gemma-3-270m/qlora.yaml"]


def test_parts_are_listed_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["recipes", "list", "--parts", "shared/"])
    assert "recipes/shared/lora.yaml" in capsys.readouterr().out


def test_a_recipe_is_shown_as_it_is_or_whole(capsys: pytest.CaptureFixture[str]) -> None:
    name = "recipes/qwen3-0.6b/lora.yaml"
    cli.main(["recipes", "show", name])
    assert capsys.readouterr().out == (bundled("recipes") / "qwen3-0.6b" / "lora.yaml").read_text("utf-8")
    cli.main(["recipes", "show", name, "--resolved"])
    assert yaml.safe_load(capsys.readouterr().out) == load_recipe(name).model_dump()


@pytest.mark.parametrize("options", [[], ["--resolved"]])
def test_a_copy_is_the_same_recipe_and_can_be_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    name = "recipes/smollm2-360m/qlora.yaml"
    expected = load_recipe(name)
    monkeypatch.chdir(tmp_path)
    cli.main(["recipes", "copy", name, *options])
    copy = tmp_path / "qlora.yaml"
    assert load_recipe(copy) == expected
    copy.write_text(copy.read_text("utf-8").replace(expected.train.output_dir, "runs/mine"))
    assert load_recipe(copy).train.output_dir == "runs/mine"


def test_a_copy_goes_where_it_is_told_and_replaces_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "recipes/quickstart/sft.yaml"
    cli.main(["recipes", "copy", name, str(tmp_path)])
    cli.main(["recipes", "copy", name, str(tmp_path / "new" / "mine.yaml")])
    assert (tmp_path / "sft.yaml").read_text() == (tmp_path / "new" / "mine.yaml").read_text()
    (tmp_path / "sft.yaml").write_text("mine")
    with pytest.raises(SystemExit):
        cli.main(["recipes", "copy", name, str(tmp_path)])
    assert "is there already" in capsys.readouterr().err
    assert (tmp_path / "sft.yaml").read_text() == "mine"
    cli.main(["recipes", "copy", name, str(tmp_path), "--overwrite"])
    assert (tmp_path / "sft.yaml").read_text() != "mine"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["show", "recipes/qwen3-0.6b/loar.yaml"], "Did you mean 'recipes/qwen3-0.6b/lora.yaml'?"),
        (["list", "gpt-5"], "no bundled recipe has 'gpt-5'"),
    ],
)
def test_an_unknown_name_is_explained(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["recipes", *arguments])
    assert stop.value.code == 1
    assert said in capsys.readouterr().err
