"""Recipes: sections, overrides and errors for wrong keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from d2e_sft.config.recipe import D2ESection, load_recipe, recipe_of
from d2e_sft.util.errors import UserError


def test_defaults_are_the_papers(recipe_file: Path) -> None:
    recipe = load_recipe(recipe_file)
    assert (recipe.d2e.alpha, recipe.d2e.kl_weight, recipe.d2e.kl_direction) == (0.5, 1.0, "original_refined")
    assert (recipe.train.learning_rate, recipe.train.batch_size, recipe.train.num_train_epochs) == (1e-5, 64, 3)
    assert recipe.train.warmup_steps == 0.1


def test_overrides_reach_every_section(recipe_file: Path) -> None:
    changes = ["d2e.alpha=0.7", "train.learning_rate=3e-5", "model.lora.r=4", "train.report_to=[wandb]"]
    recipe = load_recipe(recipe_file, [*changes, "train.output_dir=~/x"])
    assert recipe.d2e.alpha == 0.7
    assert (recipe.train.learning_rate, recipe.train.report_to) == (3e-5, ["wandb"])
    assert load_recipe(recipe_file, ["train.report_to=none"]).train.report_to == []
    assert recipe.train.output_dir == str(Path.home() / "x")
    assert recipe.model.lora is not None
    assert recipe.model.lora.r == 4


@pytest.mark.parametrize("more", ["d2e:\n  # alpha: 0.7"])
def test_an_empty_section_means_its_defaults(recipe_file: Path, more: str) -> None:
    assert load_recipe(recipe_file).d2e == D2ESection()


@pytest.mark.parametrize(
    ("overrides", "micro_batch"),
    [
        (["train.batch_size=4"], 4),
        (["train.batch_size=30"], 6),
        (["train.batch_size=13"], 1),
        (["train.batch_size=24"], 8),
        (["train.batch_size=4", "train.per_device_train_batch_size=2"], 2),
        (["train.batch_size=4", "train.micro_batch_tokens=64"], 8),
        (["train.batch_size=4", "train.per_device_train_batch_size=8"], None),
    ],
)
def test_a_batch_alone_makes_micro_batches_that_divide_it(
    recipe_file: Path, overrides: list[str], micro_batch: int | None
) -> None:
    if micro_batch is None:
        with pytest.raises(UserError, match="is not a multiple of"):
            load_recipe(recipe_file, overrides)
    else:
        assert load_recipe(recipe_file, overrides).train.per_device_train_batch_size == micro_batch


@pytest.mark.parametrize(
    ("more", "expected"),
    [("", 0.5), ("d2e: {alpha: 0.3}", 0.3), ("d2e: {debias: false}", 0.0), ("eval: {alpha: 0.9}", 0.9)],
)
def test_a_model_is_decoded_as_it_was_trained_unless_its_recipe_says_otherwise(
    recipe_file: Path, more: str, expected: float
) -> None:
    assert load_recipe(recipe_file).decoding.alpha == expected


@pytest.mark.parametrize("more", ["d2e: {alpha: 0.7}"])
def test_a_checkpoint_has_its_runs_recipe_and_another_folder_has_none(recipe_file: Path, more: str) -> None:
    run = recipe_file.parent
    (run / "checkpoint-7" / "merged").mkdir(parents=True)
    for folder in (run, run / "checkpoint-7"):
        found = recipe_of(str(folder))
        assert found is not None
        assert found.d2e.alpha == 0.7
    assert recipe_of(str(run / "checkpoint-7" / "merged")) is None
    assert recipe_of("someone/a-model") is None


def test_a_key_in_a_recipe_is_refused_and_not_shown(recipe_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_0123456789abcdef")
    with pytest.raises(UserError, match=r"a value contains that of \$HF_TOKEN") as refused:
        load_recipe(recipe_file, ["train.output_dir=runs/hf_0123456789abcdef"])
    assert "0123456789" not in str(refused.value)
