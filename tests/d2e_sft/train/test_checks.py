"""Before and while a training runs: its configuration, what is checked, and what stops it."""

import json
import os
import signal
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import PartialState
from transformers import HfArgumentParser, TrainingArguments

from d2e_sft.config.recipe import D2ESection, Recipe, TrainSection
from d2e_sft.model.storage.seal import damage
from d2e_sft.train import checks
from d2e_sft.train import trainer as trainer_module
from d2e_sft.train.checks import count_steps
from d2e_sft.train.config import D2EConfig
from d2e_sft.train.prepare import load_on_all
from d2e_sft.train.run_folder import checkpoints_of
from d2e_sft.util.errors import UserError
from tests.command import d2e, refusal_of
from tests.factories import write_recipe

NEEDED = {"data": {"train": "rows.parquet"}, "train": {"output_dir": "run"}}


def recipe_config(**sections: dict[str, Any]) -> Recipe:
    data, train = ({**needed, **sections.pop(name, {})} for name, needed in NEEDED.items())
    return Recipe.model_validate({"data": data, "train": train, **sections})


@pytest.mark.parametrize(
    ("batch", "most", "processes", "expected"),  # a micro-batch and their number, or what is said
    [
        (8, 8, 2, (4, 1)),
        (24, 8, 2, (6, 2)),
        (64, 8, 2, (8, 4)),
        (8, 2, 4, (2, 1)),
        (8, 8, 3, "set B=6 M=2 or B=9 M=3, or start 2 processes"),
        (2, 1, 4, "set B=4 M=1, or start 2 processes"),
    ],
)
def test_processes_share_a_batch_equally(
    batch: int, most: int, processes: int, expected: tuple[int, int] | str
) -> None:
    asked = recipe_config(train={"batch_size": batch, "per_device_train_batch_size": most})
    if isinstance(expected, tuple):
        steps = count_steps(asked, 100, processes)
        assert (steps.micro_batch, steps.accumulation) == expected
        assert steps.micro_batch * steps.accumulation * processes == batch
        return
    with pytest.raises(UserError) as refused:
        count_steps(asked, 100, processes)
    said = expected.replace("B=", "train.batch_size=").replace("M=", "train.per_device_train_batch_size=")
    assert refused.value.remedy == said


def test_each_run_of_a_process_has_its_own_project_unless_the_user_names_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    with checks.trackers([], "none"):
        assert "WANDB_PROJECT" not in os.environ
    for project in ("one", "two"):
        with checks.trackers(["wandb"], project):
            assert os.environ["WANDB_PROJECT"] == project
        assert "WANDB_PROJECT" not in os.environ, "a later training of the process would be filed there"
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    with checks.trackers(["wandb"], "three"):
        assert os.environ["WANDB_PROJECT"] == "mine"
    assert os.environ["WANDB_PROJECT"] == "mine"


def test_random_weights_are_those_of_the_seed(world: Path) -> None:
    state = PartialState(cpu=True)

    def embeddings(seed: int, weights: str = "random") -> Any:
        model = {"name": str(world / "model"), "weights": weights}
        return load_on_all(recipe_config(model=model, train={"seed": seed}), state).model.get_input_embeddings().weight

    assert torch.equal(embeddings(1), embeddings(1))
    assert not torch.equal(embeddings(1), embeddings(2))
    assert torch.equal(embeddings(1, "pretrained"), embeddings(2, "pretrained"))


def test_the_defaults_are_a_recipes() -> None:
    plain, of_recipe = D2EConfig("run"), D2EConfig.from_recipe(recipe_config())
    assert plain.d2e == of_recipe.d2e == recipe_config().d2e
    resolved = {"disable_tqdm", *D2ESection.model_fields}
    for one in fields(plain):
        if one.name not in resolved and one.init:
            assert str(getattr(plain, one.name)) == str(getattr(of_recipe, one.name)), one.name
    assert {*TrainSection.model_fields, *D2ESection.model_fields} <= {one.name for one in fields(plain)}


def test_a_recipe_of_other_values_comes_back_as_it_was() -> None:
    told = recipe_config(
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
    words += ["--gradient_accumulation_steps", "2"]
    parser = HfArgumentParser(D2EConfig)  # type: ignore[arg-type]
    assert "The debias ratio" in parser.format_help()
    (args,) = parser.parse_args_into_dataclasses(words)
    assert (args.d2e, args.save_steps, args.batch_size) == (D2ESection(objective="teacher", debias=False), 0.5, 16)


@pytest.mark.parametrize("of_launcher", [None, "bf16"])
def test_precision_is_that_of_the_arguments(monkeypatch: pytest.MonkeyPatch, of_launcher: str | None) -> None:
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
        ({"batch_size": None, "gradient_accumulation_steps": 2}, (16, 8, 2, 8)),
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
    for size in (64, 12):
        assert D2EConfig.of(TrainingArguments("run", use_cpu=True), batch_size=size).batch_size == size
    assert not args.remove_unused_columns, "views are no columns of a model's forward"
    assert D2EConfig.of(args) is args
    changed = D2EConfig.of(TrainingArguments("run", learning_rate=0.5, use_cpu=True), objective="sft", learning_rate=2)
    assert (changed.objective, changed.learning_rate) == ("sft", 2)


@pytest.fixture
def folder(world: Path, tmp_path: Path) -> Path:
    """A recipe of 5 steps with a checkpoint each, two micro-batches of two samples a step."""
    keys = ("max_steps=5", "save_steps=1", "save_total_limit=1", "logging_steps=5")
    write_recipe(world, tmp_path / "run", *(f"train.{key}" for key in keys))
    return tmp_path


class AtMicroBatch:
    """Does something at one micro-batch of a training."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int, act: Any) -> None:
        original, self.seen = trainer_module.D2ETrainer.compute_loss, 0

        def compute_loss(trainer: Any, model: Any, inputs: Any, *rest: Any, **options: Any) -> Any:
            self.seen += 1
            loss = original(trainer, model, inputs, *rest, **options)
            return act(trainer, loss) if self.seen == number else loss

        monkeypatch.setattr(trainer_module.D2ETrainer, "compute_loss", compute_loss)


def raising(error: BaseException) -> Any:
    def act(trainer: Any, loss: Any) -> Any:
        raise error

    return act


def test_a_nan_loss_stops_with_its_samples_and_last_checkpoint(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    AtMicroBatch(monkeypatch, 6, lambda trainer, loss: loss * float("inf"))  # the second of step 3
    said = refusal_of("train", folder / "run.yaml")
    assert "the loss became inf at step 3" in said
    record = json.loads((folder / "run" / "non_finite.json").read_text())
    assert record["step"] == 3
    assert record["losses"] == ["inf"]
    assert len(record["samples"]) == 2
    assert all(name in said and name.endswith(" of made-up") for name in record["samples"])
    (checkpoint,) = checkpoints_of(folder / "run")
    assert checkpoint.name == "checkpoint-2"
    assert damage(checkpoint, cached=False) is None
    assert not (folder / "run" / "model.safetensors").exists()


def test_weights_that_are_no_numbers_replace_no_checkpoint(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(trainer: Any, loss: Any) -> Any:
        loss.register_hook(lambda gradient: gradient * float("nan"))  # a finite loss, and gradients that are not
        return loss

    AtMicroBatch(monkeypatch, 6, spoil)
    assert "became NaN or infinite at step 3" in refusal_of("train", folder / "run.yaml")
    assert [path.name for path in checkpoints_of(folder / "run")] == ["checkpoint-2"]


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: you tried …"),
        MemoryError(),
    ],
)
def test_too_little_memory_names_settings(folder: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    AtMicroBatch(monkeypatch, 4, raising(error))
    said = refusal_of("train", folder / "run.yaml")
    assert "out of memory at step 2, in a micro-batch of 2 samples" in said
    assert said.count(" of made-up: original ") == 2
    assert "imagined " in said
    settings = ("train.per_device_train_batch_size", "data.max_length", "train.gradient_checkpointing", "--resume")
    assert all(setting in said for setting in settings)


@pytest.mark.parametrize(
    ("saving", "kept"),
    [
        ("2", "checkpoint-2 is saved; --resume continues"),
        ("null", "no checkpoint was saved; train.save_steps=N saves one every N steps"),
    ],
)
def test_ctrl_c_says_what_is_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], saving: str, kept: str
) -> None:
    AtMicroBatch(monkeypatch, 5, raising(KeyboardInterrupt()))
    assert d2e("train", folder / "run.yaml", f"train.save_steps={saving}") == 130
    assert f"d2e: stopped; {kept}" in " ".join(capsys.readouterr().err.split())


def test_sigterm_before_the_first_step_says_that_nothing_was_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("d2e_sft.train.run.read_all", lambda recipe: os.kill(os.getpid(), signal.SIGTERM))
    assert d2e("train", folder / "run.yaml") == 75
    assert "ended by SIGTERM; nothing was written" in capsys.readouterr().err
    assert not (folder / "run").exists()


def test_sigterm_saves_a_checkpoint_where_none_was_due_and_ends_with_75(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def terminate(trainer: Any, loss: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return loss

    with monkeypatch.context() as patch:
        AtMicroBatch(patch, 5, terminate)  # the first micro-batch of step 3
        assert d2e("train", folder / "run.yaml", "train.save_steps=null") == 75
    assert "ended by SIGTERM; checkpoint-3 is saved; --resume continues" in capsys.readouterr().err
    assert [path.name for path in checkpoints_of(folder / "run")] == ["checkpoint-3"]
    assert not (folder / "run" / "model.safetensors").exists()
    assert d2e("train", folder / "run.yaml", "train.save_steps=null", "--resume") == 0
    ended = (folder / "run" / "trainer_state.json").read_text()
    assert json.loads(ended)["global_step"] == 5
    assert d2e("train", folder / "run.yaml", "train.save_steps=null", "--resume") == 0
    assert (folder / "run" / "trainer_state.json").read_text() == ended, "finished, though its checkpoint is of step 3"
    assert d2e("train", folder / "run.yaml", f"train.output_dir={folder / 'whole'}", "train.save_steps=null") == 0
    one, other = ((folder / name / "model.safetensors").read_bytes() for name in ("run", "whole"))
    assert one == other
