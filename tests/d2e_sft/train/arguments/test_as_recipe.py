"""What a recipe cannot say of the arguments of a training from Python."""

from __future__ import annotations

from transformers import TrainingArguments

from d2e_sft.train.arguments.as_recipe import to_recipe
from d2e_sft.train.arguments.config import D2EConfig


def test_only_what_was_changed_of_transformers_arguments_is_named() -> None:
    args = D2EConfig.of(TrainingArguments("run", adam_beta1=0.8, use_cpu=True))
    assert to_recipe(args, {"name": "m"}, {"train": "rows.parquet"})[1] == ["adam_beta1"]


def test_what_a_recipe_cannot_say_is_named() -> None:
    args = D2EConfig("run", adam_beta1=0.8, lr_scheduler_type="polynomial", max_steps=2)
    again, unsaid = to_recipe(args, {"name": "m"}, {"train": "rows.parquet"})
    assert unsaid == ["adam_beta1", "train.lr_scheduler_type"]
    assert again.train.max_steps == 2
