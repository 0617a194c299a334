"""D2EConfig: the same run as a recipe's, by transformers' names."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from transformers import HfArgumentParser, TrainingArguments

from d2e_sft.config.recipe import D2ESection, Recipe, TrainSection
from d2e_sft.train.config import D2EConfig


def recipe(**sections: dict[str, Any]) -> Recipe:
    content: dict[str, dict[str, Any]] = {"data": {"train": "rows.parquet"}, "train": {"output_dir": "run"}}
    return Recipe.model_validate(
        {name: {**content.get(name, {}), **sections.get(name, {})} for name in {*content, *sections}}
    )


def test_the_defaults_are_a_recipes() -> None:
    plain, of_recipe = D2EConfig("run"), D2EConfig.from_recipe(recipe())
    assert plain.d2e == of_recipe.d2e == recipe().d2e
    resolved = {"disable_tqdm", *D2ESection.model_fields}
    for one in fields(plain):
        if one.name not in resolved and one.init:
            assert str(getattr(plain, one.name)) == str(getattr(of_recipe, one.name)), one.name
    assert {*TrainSection.model_fields, *D2ESection.model_fields} <= {one.name for one in fields(plain)}


def test_a_recipe_of_other_values_comes_back_as_it_was() -> None:
    told = recipe(
        model={"name": "m", "attention": "sdpa"},
        data={"dev": "dev.parquet", "max_length": 300, "overlong": "drop"},
        d2e={"objective": "teacher", "kl_weight": 0.3},
        train={
            "seed": 7, "num_train_epochs": 1.5, "max_steps": 9, "batch_size": 12, "per_device_train_batch_size": 3,
            "learning_rate": 0.01, "lr_scheduler_type": "linear", "optim": "sgd", "bf16": False,
            "save_steps": 4, "eval_steps": 2,
            "logging_steps": 3, "gradient_checkpointing": True, "sample_predictions": 2, "packing": "batched",
        },
        eval={"alpha": 0.2, "max_new_tokens": 5},
    )  # fmt: skip
    args = D2EConfig.from_recipe(told)
    assert (args.gradient_accumulation_steps, args.optim, args.bf16, args.max_steps) == (4, "sgd", False, 9)
    assert (args.d2e.objective, args.decoding_alpha) == ("teacher", 0.2)
    assert (args.recipe, args.left_out) == (told, [])
    named = {name: getattr(args, name) for name in ("objective", "kl_weight", "decoding_alpha", "overlong", "optim")}
    again = D2EConfig("run", **{**named, "batch_size": 12, "per_device_train_batch_size": 3}).recipe
    assert (again.d2e, again.eval.alpha, again.data.overlong, again.train.optim) == (told.d2e, 0.2, "drop", "sgd")


def test_only_what_was_changed_and_no_recipe_can_express_is_left_out() -> None:
    assert D2EConfig.of(TrainingArguments("run", adam_beta1=0.8, use_cpu=True)).left_out == ["adam_beta1"]
    args = D2EConfig("run", adam_beta1=0.8, lr_scheduler_type="polynomial", max_steps=2)
    assert args.left_out == ["adam_beta1", "train.lr_scheduler_type"]
    assert args.recipe.train.max_steps == 2


def test_transformers_parser_takes_recipe_keys_as_options(tmp_path: Path) -> None:
    words = ["--output_dir", str(tmp_path), "--objective", "teacher", "--debias", "false", "--save_steps", "0.5"]
    parser = HfArgumentParser(D2EConfig)  # type: ignore[arg-type]
    assert "The debias ratio" in parser.format_help()
    (args,) = parser.parse_args_into_dataclasses(words)
    assert (args.d2e, args.save_steps) == (D2ESection(objective="teacher", debias=False), 0.5)


@pytest.mark.parametrize("of_launcher", [None, "bf16"])
def test_precision_is_that_of_the_arguments_and_of_no_others(
    monkeypatch: pytest.MonkeyPatch, of_launcher: str | None
) -> None:
    name = "ACCELERATE_MIXED_PRECISION"
    monkeypatch.delenv(name, raising=False)
    if of_launcher:
        monkeypatch.setenv(name, of_launcher)
    found = [D2EConfig("run", bf16=bf16).mixed_precision for bf16 in (True, False)]
    assert found == ["bf16", "no"]
    assert os.environ.get(name) == of_launcher
    assert TrainingArguments("run", use_cpu=True).mixed_precision == (of_launcher or "no")


@pytest.mark.parametrize(
    ("given", "expected"),  # global batch, micro-batch, accumulation, evaluation batch
    [
        ({}, (64, 8, 8, 8)),
        ({"batch_size": 4}, (4, 4, 1, 4)),
        ({"batch_size": 12}, (12, 6, 2, 6)),
        ({"batch_size": 16}, (16, 8, 2, 8)),
        ({"batch_size": 12, "per_device_train_batch_size": 4}, (12, 4, 3, 4)),
        ({"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}, (8, 4, 2, 4)),
        ({"batch_size": 12, "micro_batch_tokens": 99, "per_device_train_batch_size": 4}, (12, 12, 1, 4)),
        ({"batch_size": 12, "rows_per_context": 2, "per_device_train_batch_size": 4}, (12, 12, 1, 4)),
        ({"per_device_eval_batch_size": 5}, (64, 8, 8, 5)),
    ],
)
def test_the_global_batch_and_accumulation_follow_from_each_other(given: dict[str, Any], expected: Any) -> None:
    args = D2EConfig("run", **given)
    of_steps = (args.batch_size, args.per_device_train_batch_size, args.gradient_accumulation_steps)
    assert (*of_steps, args.per_device_eval_batch_size) == expected


def test_transformers_own_arguments_are_completed() -> None:
    args = D2EConfig.of(TrainingArguments("run", learning_rate=0.5, per_device_train_batch_size=3, use_cpu=True))
    assert (args.learning_rate, args.per_device_train_batch_size, args.bf16, args.alpha) == (0.5, 3, False, 0.5)
    assert not args.remove_unused_columns, "views are no columns of a model's forward"
    assert D2EConfig.of(args) is args
    changed = D2EConfig.of(TrainingArguments("run", learning_rate=0.5, use_cpu=True), objective="sft", learning_rate=2)
    assert (changed.objective, changed.learning_rate) == ("sft", 2)
