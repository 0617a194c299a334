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


@pytest.mark.parametrize("more", ["model: {name: a}\nmodel: {name: b}"])
def test_a_key_given_twice_is_refused(recipe_file: Path, more: str) -> None:
    with pytest.raises(UserError, match="the key 'model' is given twice"):
        load_recipe(recipe_file)


@pytest.mark.parametrize("more", ["d2e:\n  # alpha: 0.7"])
def test_an_empty_section_means_its_defaults(recipe_file: Path, more: str) -> None:
    assert load_recipe(recipe_file).d2e == D2ESection()


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("d2e.aplha=1", r"unknown key 'd2e.aplha' \(value 1\); d2e has objective, alpha, .*Did you mean 'alpha'\?"),
        ("trian.seed=1", r"unknown key 'trian' .*; a recipe has model, data, d2e, train, eval.*Did you mean 'train'"),
        ("train.epochs=1", r"unknown key 'train.epochs' .*Did you mean 'num_train_epochs'\?"),
        ("train.micro_batch_size=1", r"Did you mean 'per_device_train_batch_size'\?"),
        ("train.warmup_ratio=0", r"Did you mean 'warmup_steps'\?"),
        ("train.precision=float32", r"Did you mean 'bf16'\?"),
        ("train.compile=true", r"Did you mean 'compile_layers'\?"),
        ("train.liger_kernel=true", r"Did you mean 'use_liger_kernel'\?"),
        ("model.lora.rank=1", r"unknown key 'model.lora.rank' .*; model.lora has r, lora_alpha"),
        ("model.lora.r=1000000", r"model.lora.r: got 1000000; Input should be less than or equal to 4096"),
        ("d2e.alpha=-1", r"d2e.alpha: got -1; Input should be greater than or equal to 0"),
        ("d2e.alpha=true", r"d2e.alpha: got True; expected no truth value"),
        ("train.max_steps=false", r"train.max_steps: got False; expected no truth value"),
        ("d2e.alpha=much", r"d2e.alpha: got 'much'; Input should be a valid number"),
        ("train.per_device_train_batch_size=7", r"64 is not a multiple of train.per_device_train_batch_size=7"),
        ("train.report_to=wnadb", r"train.report_to.0: got 'wnadb'; Input should be 'wandb'"),
        ("d2e.alpha", r"override 'd2e.alpha': expected section.key=value"),
        ("train.eval_steps=2", r"train.eval_steps=2 needs held-out rows to evaluate on; set data.dev=FILE"),
        ("train.early_stopping_patience=2", r"patience=2 needs held-out rows to evaluate on; set data.dev=FILE"),
        ("train.load_best_model_at_end=true", r"load_best_model_at_end=True needs held-out rows"),
        ("data.max_dev_samples=3", r"data.max_dev_samples=3 needs held-out rows"),
        ("data.max_probe_samples=2", r"data.max_probe_samples=2 needs held-out rows .*; set data.probe=FILE"),
        ("data.train.deeper=1", r"'train' is a value, not a section"),
    ],
)
def test_a_wrong_override_is_explained(recipe_file: Path, override: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        load_recipe(recipe_file, [override])


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


def test_the_best_model_must_be_evaluated_and_saved(recipe_file: Path) -> None:
    changes = ["data.dev=dev.parquet", "train.load_best_model_at_end=true", "train.eval_steps=2"]
    for saved in ("null", "3"):
        with pytest.raises(UserError, match="expected both, save_steps a multiple of eval_steps"):
            load_recipe(recipe_file, [*changes, f"train.save_steps={saved}"])
    assert load_recipe(recipe_file, [*changes, "train.save_steps=4"]).train.load_best_model_at_end


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
