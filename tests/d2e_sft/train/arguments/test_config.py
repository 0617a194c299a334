"""D2EConfig: the same run as a recipe's, by transformers' names."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from accelerate.parallelism_config import ParallelismConfig
from transformers import HfArgumentParser, TrainingArguments

from d2e_sft.config.recipe import D2ESection, Recipe, TrainSection
from d2e_sft.train.arguments.as_recipe import to_recipe
from d2e_sft.train.arguments.config import D2EConfig
from d2e_sft.util.errors import UserError


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
    again, unsaid = to_recipe(args, {"name": "m"}, {"train": "rows.parquet", "dev": "dev.parquet"})
    assert again == told
    assert unsaid == []


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
    ("name", "value", "said"),
    [
        ("max_length", -1, "max_length: got -1; Input should be greater than or equal to 8"),
        ("overlong", "cut", "overlong: got 'cut'; Input should be 'error', 'drop' or 'truncate_context'"),
        ("decoding_alpha", -3, "decoding_alpha: got -3; Input should be greater than or equal to 0"),
        ("per_device_train_batch_size", 0, "per_device_train_batch_size: got 0; Input should be greater than"),
    ],
)
def test_a_value_of_an_own_argument_that_a_recipe_refuses_is_refused(name: str, value: Any, said: str) -> None:
    with pytest.raises(UserError, match=f"D2EConfig: {said}"):
        D2EConfig("run", **{name: value})


@pytest.mark.parametrize(("batch", "expected"), [(4, (4, 1)), (12, (6, 2)), (16, (8, 2))])
def test_a_batch_alone_makes_micro_batches_that_divide_it(
    tmp_path: Path, batch: int, expected: tuple[int, int]
) -> None:
    config = D2EConfig(output_dir=str(tmp_path), batch_size=batch)
    assert (config.per_device_train_batch_size, config.gradient_accumulation_steps) == expected
    with pytest.raises(UserError, match=rf"split over 1 process in[\s\S]*set batch_size={batch} per"):
        D2EConfig(output_dir=str(tmp_path), batch_size=batch, per_device_train_batch_size=7)


@pytest.mark.parametrize(
    ("given", "expected"),  # global batch, micro-batch, accumulation, evaluation batch
    [
        ({}, (64, 8, 8, 8)),
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


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"neftune_noise_alpha": 5}, "the subtraction needs equal embeddings"),
        ({"label_smoothing_factor": 0.1}, "the objective defines the loss"),
        ({"torch_compile": True}, "set compile_layers=True"),
        ({"use_liger_kernel": True}, "pip install liger-kernel"),
        ({"objective": "techer"}, "Did you mean 'teacher'?"),
        ({"alpha": -1.0}, "alpha: got -1.0"),
        (
            {"parallelism_config": ParallelismConfig(cp_size=2)},
            "context parallelism over 2 processes is not supported",
        ),
        ({"parallelism_config": ParallelismConfig(tp_size=4)}, "need the same rows"),
    ],
)
def test_what_cannot_be_had_is_refused_with_the_reason(given: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        D2EConfig(str(tmp_path), **given)
    assert told in str(caught.value)


def test_parallelism_of_the_launcher_is_refused_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARALLELISM_CONFIG_SP_SIZE", "2")
    D2EConfig(str(tmp_path))  # not asked for
    monkeypatch.setenv("ACCELERATE_USE_PARALLELISM_CONFIG", "true")
    with pytest.raises(UserError, match="sequence parallelism over 2 processes is not supported: it divides a row's"):
        D2EConfig(str(tmp_path))
