"""The probe of reading: what it counts is what greedy decoding answers, and what it logs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from d2e_sft import D2EConfig, D2ETrainer
from d2e_sft.config.recipe import Recipe, load_recipe
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.sample import EventSample, write_samples
from d2e_sft.decoding import DecodingConfig, answer_samples
from d2e_sft.model.loading import load_model
from d2e_sft.train.rows import read_rows
from d2e_sft.train.run import train_recipe
from d2e_sft.train.samples import probe_samples
from d2e_sft.util.errors import UserError
from tests.factories import log_history, make_world, write_recipe
from tests.tiny import make_sample, make_samples


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that can learn two rows by heart, which are probed with two that it never sees."""
    kinds = {"model": "llama", "t5": "t5"}
    return make_world(tmp_path_factory.mktemp("probe"), train=4, probe=probed(), bench=0, kinds=kinds)


def probed() -> list[EventSample]:
    seen = [make_sample(i, split="test", subset="aligned") for i in range(4)]
    unseen = [make_sample(i, split="test", subset="conflict", answers=[f"stone {i}"]) for i in range(10, 14)]
    return [*seen, *unseen, make_sample(30, split="test")]


def recipe_for(world: Path, run: Path, *overrides: str) -> Recipe:
    given = ("learning_rate=1e-2", "logging_steps=100", "eval_steps=3", "lr_scheduler_type=constant")
    path = write_recipe(world, run, f"data.probe={world}/probe.jsonl", *(f"train.{one}" for one in given))
    return load_recipe(str(path), overrides)


def history(run: Path) -> list[dict[str, Any]]:
    return [entry for entry in log_history(run) if "eval_habit_gap" in entry]


@pytest.fixture(scope="module")
def learnt(world: Path) -> Path:
    """A model that answers some of the rows it was trained on."""
    sft = ("d2e.debias=false", "d2e.distill=false", "data.probe=null", "train.eval_steps=null")
    return train_recipe(recipe_for(world, world / "learnt", *sft, "train.max_steps=70"))


@pytest.mark.parametrize("packing", ["shared_batch", "batched"])
def test_it_counts_what_greedy_decoding_answers(world: Path, learnt: Path, tmp_path: Path, packing: str) -> None:
    sft = (f"model.name={learnt}", "d2e.debias=false", "d2e.distill=false", "eval.alpha=0.3")
    steps = ("train.max_steps=2", "train.eval_steps=1", "train.learning_rate=1e-4")
    recipe = recipe_for(world, tmp_path / "run", f"train.packing={packing}", *sft, *steps)
    train_recipe(recipe)
    found = history(tmp_path / "run")
    assert [entry["step"] for entry in found] == [0, 1, 2]
    loaded = load_model(str(tmp_path / "run"), dtype="float32")
    wording = load_prompt_set("default")
    samples = probe_samples(recipe)
    decoding = DecodingConfig(alpha=0.3, max_new_tokens=60)
    for name, alpha in (("plain", 0.0), ("debiased", 0.3)):
        said = answer_samples(loaded.model, loaded.tokenizer, samples, replace(decoding, alpha=alpha))
        right = [text == wording.response(sample) for text, sample in zip(said, samples, strict=True)]
        assert found[-1][f"eval_{name}_aligned"] == sum(right[:4]) / 4
        assert found[-1][f"eval_{name}_conflict"] == sum(right[4:]) / 4
    assert found[-1]["eval_plain_aligned"] > 0  # something is right, so that the comparison says something
    assert found[-1]["eval_habit_gap"] == found[-1]["eval_debiased_aligned"] - found[-1]["eval_debiased_conflict"]
    assert found[-1]["eval_n"] == 4
    # A step takes all four rows, in the original view only; the last answer token is no input.
    rows = read_rows(recipe, "training", loaded, progress=False).dataset
    tokens = sum(len(row["original"]) + len(row["answer"]) - 1 for row in rows)
    assert [entry["eval_train_tokens"] for entry in found] == [0, tokens, 2 * tokens]


def test_a_first_dataset_without_conflict_rows_is_a_further_one(world: Path, tmp_path: Path) -> None:
    first, *others = [sample for sample in probed() if sample.subset in ("aligned", "conflict")]
    write_samples([first.model_copy(update={"dataset": "further"}), *others], tmp_path / "probe.jsonl")
    train_recipe(recipe_for(world, tmp_path / "run", f"data.probe={tmp_path}/probe.jsonl", "train.max_steps=1"))
    names = {"eval_plain_aligned", "eval_plain_conflict", f"eval_plain_{first.subset}_further", "eval_habit_gap"}
    assert names <= history(tmp_path / "run")[0].keys()


@pytest.mark.parametrize("lacking", ["aligned", "conflict"])
def test_rows_without_a_subset_are_refused(world: Path, tmp_path: Path, lacking: str) -> None:
    write_samples([sample for sample in probed() if sample.subset != lacking], tmp_path / "probe.jsonl")
    recipe = recipe_for(world, tmp_path / "run", f"data.probe={tmp_path}/probe.jsonl")
    with pytest.raises(UserError, match=f"no sample's subset is '{lacking}'; its samples have None"):
        train_recipe(recipe)


def test_from_python_the_same_values_are_logged_and_the_rows_kept(world: Path, tmp_path: Path) -> None:
    run = train_recipe(recipe_for(world, tmp_path / "run", "train.eval_steps=2"))
    given = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "max_steps": 4, "learning_rate": 1e-2}
    given |= {"lr_scheduler_type": "constant", "bf16": False, "disable_tqdm": True, "logging_steps": 100}
    trainer = D2ETrainer(
        str(world / "model"),
        D2EConfig(str(tmp_path / "python"), max_length=1000, eval_strategy="steps", eval_steps=2, **given),
        train_dataset=[sample.model_dump() for sample in make_samples(4)],
        probe_dataset=[sample.model_dump() for sample in probed()],
    )
    trainer.train()
    first, second = (
        [{k: v for k, v in entry.items() if "seconds" not in k} for entry in history(folder)]
        for folder in (run, tmp_path / "python")
    )
    assert [entry["step"] for entry in second] == [0, 2, 4]
    assert first == second
    kept = load_recipe(str(tmp_path / "python" / "recipe.yaml"))
    assert len(probe_samples(kept)) == len(probed()) - 1, "the recipe that repeats the run has them"
    assert kept.train.eval_steps == 2


def test_from_python_it_needs_no_strategy_and_refuses_other_rows(world: Path, tmp_path: Path) -> None:
    config = D2EConfig(str(tmp_path / "run"), max_steps=1, bf16=False, disable_tqdm=True, max_length=1000)
    rows = [sample.model_dump() for sample in make_samples(4)]
    trainer = D2ETrainer(str(world / "model"), config, train_dataset=rows, probe_dataset=f"{world}/probe.jsonl")
    trainer.train()
    assert [entry["step"] for entry in history(tmp_path / "run")] == [0, 1]
    with pytest.raises(UserError, match=r"probe_dataset: no sample's subset is 'aligned'; its samples have None"):
        D2ETrainer(str(world / "model"), config, train_dataset=rows, probe_dataset=rows)
    tokens = trainer.inputs.train_dataset if trainer.inputs else None
    with pytest.raises(UserError, match="probe_dataset: it needs training rows with"):
        D2ETrainer(str(world / "model"), config, train_dataset=tokens, probe_dataset=rows)
