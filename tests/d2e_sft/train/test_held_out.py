"""Evaluation while training: the objective on held-out rows, and what the model says to some of them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import pytest
import torch
from safetensors.torch import load_file
from transformers import TrainingArguments

from d2e_sft.config.recipe import D2ESection, Recipe, load_recipe
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.sample import EventSample, write_samples
from d2e_sft.data.views import ViewEncoder
from d2e_sft.decoding import DecodingConfig, answer_samples
from d2e_sft.model.loading import load_model
from d2e_sft.train import evaluation, trainer
from d2e_sft.train.config import D2EConfig
from d2e_sft.train.run import train_recipe
from d2e_sft.train.trainer import D2ETrainer
from tests.factories import log_history, make_world, write_recipe
from tests.naive import encoded_rows, naive_sums
from tests.tiny import make_sample, make_samples, tiny_model, tiny_tokenizer

STEPS = 5  # 9 samples in batches of 4: three steps an epoch


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two models, nine training samples, seven others and rows of a probe."""
    probe = [make_sample(i, split="test", subset="aligned" if i % 2 else "conflict") for i in range(4)]
    kinds = {"model": "llama", "dropout": "gpt2-dropout"}
    folder = tmp_path_factory.mktemp("held-out")
    return make_world(folder, train=9, dev=held_out_samples(), probe=probe, bench=0, kinds=kinds)


def held_out_samples() -> list[EventSample]:
    """Questions with a line separator, which str.splitlines takes for the end of a line and JSON does not."""
    return [make_sample(number, split="dev", question=f"What\u2028rose {number}?") for number in range(20, 27)]


def trained(world: Path, run: Path, *overrides: str, **options: Any) -> list[dict[str, Any]]:
    """The log of a run of five steps, evaluated after the second, the fourth and the last."""
    train_recipe(recipe_for(world, run, *overrides), **options)
    return log_history(run)


def recipe_for(world: Path, run: Path, *overrides: str) -> Recipe:
    given = ("learning_rate=1e-2", f"max_steps={STEPS}", "eval_steps=2", "sample_predictions=3")
    rows = f"data.dev={world}/dev.jsonl"
    path = write_recipe(world, run, rows, "eval.max_new_tokens=6", *(f"train.{one}" for one in given))
    return load_recipe(path, overrides)


def predictions(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "_held_out_predictions.jsonl").read_text().split("\n")[:-1]]


@pytest.fixture(scope="module")
def run(world: Path) -> Path:
    trained(world, world / "run", "train.save_steps=3")
    return world / "run"


@pytest.fixture
def interrupted(run: Path, tmp_path: Path) -> Path:
    """The run as it was after its third step, except for later predictions."""
    copy = shutil.copytree(run, tmp_path / "resumed")
    shutil.rmtree(copy / "checkpoint-5")
    for name in ("model.safetensors", "trainer_state.json"):
        (copy / name).unlink()
    return copy


@pytest.mark.parametrize("debias", [True, False])
def test_values_are_means_over_the_answer_tokens_of_all_rows(tmp_path: Path, debias: bool) -> None:
    d2e = D2ESection(kl_weight=0.5, debias=debias, distill=debias)
    rows = encoded_rows(d2e, 7)
    args = TrainingArguments(str(tmp_path), per_device_eval_batch_size=2, report_to="none", use_cpu=True)
    held = datasets.Dataset.from_list(rows)
    found = D2ETrainer(tiny_model(seed=3), D2EConfig.of(args, **d2e.model_dump()), eval_dataset=held).evaluate()
    tokens = sum(len(row["answer"]) for row in rows)
    with torch.no_grad():
        expected = {name: total.item() / tokens for name, total in naive_sums(tiny_model(seed=3), rows, d2e).items()}
    assert found["eval_loss"] == pytest.approx(expected["loss"], rel=1e-5)
    assert found["eval_ce"] == pytest.approx(expected["ce"], rel=1e-5)
    assert found["eval_mean_token_accuracy"] == pytest.approx(expected["correct"])
    of_other_views = {"kl": "kl", "plain_accuracy": "plain_correct", "bias_share": "imagined_correct"}
    for name, total in of_other_views.items():
        value = pytest.approx(expected[total], rel=1e-4, abs=1e-7) if debias else None
        assert found.get(f"eval_{name}") == value, name


def test_a_run_is_evaluated_every_so_many_steps_and_at_its_end(world: Path, run: Path) -> None:
    assert [entry["step"] for entry in log_history(run) if "eval_loss" in entry] == [2, 4, STEPS]
    epochs = trained(world, world / "epochs", "train.eval_steps=null", "train.sample_predictions=0")
    assert [entry["step"] for entry in epochs if "eval_loss" in entry] == [3, STEPS]


def test_evaluating_and_probing_change_nothing_of_the_training(world: Path) -> None:
    model = (f"model.name={world}/dropout", "train.max_steps=3")  # which draws random numbers in every step
    history = trained(world, world / "evaluated", *model, f"data.probe={world}/probe.jsonl")
    assert any("eval_habit_gap" in entry for entry in history)
    trained(world, world / "alone", *model, "train.eval_steps=null", "data.dev=null")
    assert not (world / "alone" / "_held_out_predictions.jsonl").exists()
    ours, theirs = (load_file(world / name / "model.safetensors") for name in ("evaluated", "alone"))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_predictions_are_those_of_the_model_at_that_step(world: Path, run: Path) -> None:
    rows = predictions(run)
    assert [row["step"] for row in rows] == [step for step in (2, 4, STEPS) for _ in range(3)]
    model, samples, last = load_model(str(run)).model, {s.id: s for s in held_out_samples()}, rows[-3:]
    asked = [samples[row["id"]] for row in last]
    for row, sample in zip(last, asked, strict=True):
        assert (row["question"], row["answer"], row["format"]) == (sample.question, sample.answers[0], "qa")
    for name, alpha in (("plain", 0.0), ("debiased", 0.5)):
        decoding = DecodingConfig(alpha=alpha, max_new_tokens=6)
        assert [row[name] for row in last] == answer_samples(model, tiny_tokenizer(), asked, decoding)


def test_a_resumed_run_has_each_step_once(world: Path, run: Path, interrupted: Path) -> None:
    trained(world, interrupted, "train.save_steps=3", resume=True)
    assert predictions(interrupted) == predictions(run), "step 4 and 5 are evaluated again, from checkpoint 3"


def test_a_resumed_run_is_evaluated_when_it_is_told_to_be_now(
    world: Path, interrupted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_samples(held_out_samples()[:3], tmp_path / "other.jsonl")
    changes = ("train.save_steps=3", "train.eval_steps=5", f"data.dev={tmp_path}/other.jsonl")
    history = trained(world, interrupted, *changes, resume=True)
    assert [entry["step"] for entry in history if "eval_loss" in entry] == [2, 5], "no longer after step 4"
    assert "warning: resumed with other held-out rows" in capsys.readouterr().err


def test_time_of_evaluations_is_not_trainings(
    world: Path, interrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A clock that a micro-batch moves by a second, and decoding by a hundred.
    clock = SimpleNamespace(now=0.0, perf_counter=lambda: clock.now, process_time=lambda: clock.now)
    monkeypatch.setattr(evaluation, "time", clock)

    def takes(seconds: float, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **options: Any) -> Any:
            clock.now += seconds
            return call(*args, **options)

        return timed

    monkeypatch.setattr(trainer, "model_inputs", takes(1, trainer.model_inputs))
    monkeypatch.setattr(D2ETrainer, "decode", takes(100, D2ETrainer.decode))
    history = trained(world, tmp_path / "slow", "train.logging_steps=3", "train.eval_steps=1", "train.max_steps=3")
    [entry] = [entry for entry in history if "loss" in entry and entry["step"] == 3]
    # Steps 2 and 3: the rows of step 1 were logged by themselves. Of five micro-batches, two were step 1's.
    first = next(entry for entry in history if "loss" in entry and entry["step"] == 1)
    views = ("original", "imagined", "refined")
    encoder = ViewEncoder(tiny_tokenizer(), load_prompt_set("default"), views)
    encoded = [encoder.encode(sample) for sample in make_samples(9)]
    tokens = sum(len(item.prompts[view]) + len(item.answer) - 1 for item in encoded for view in views)
    assert 3 * entry["tokens_per_second"] + 2 * first["tokens_per_second"] == pytest.approx(tokens, abs=0.5)
    assert history[-1]["train_cpu_seconds"] == 5
    resumed = trained(world, interrupted, "train.save_steps=3", resume=True)
    assert resumed[-1]["train_cpu_seconds"] == 10, "four micro-batches of steps 4 and 5, so as many a step before"
    assert resumed[-1]["train_seconds"] == pytest.approx(resumed[-1]["train_runtime"] * 5 / 2, abs=0.01)
