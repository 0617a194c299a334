"""What a training reports: the probe of subsets, lines of progress, and curves in trackers."""

import json
import sqlite3
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from d2e_sft import D2EConfig, D2ETrainer
from d2e_sft.config.recipe import Recipe, load_recipe
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.sample import EventSample
from d2e_sft.decoding import DecodingConfig, answer_samples
from d2e_sft.model.loading import load_model
from d2e_sft.train.progress import LossLines
from d2e_sft.train.rows import read_rows
from d2e_sft.train.run import train_recipe
from d2e_sft.train.samples import probe_samples
from tests.command import call, program
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


def test_the_compute_of_a_resumed_run_goes_on(world: Path, tmp_path: Path) -> None:
    for steps in (6, 8):
        changes = (f"train.max_steps={steps}", "train.eval_steps=2", "train.save_steps=3")
        train_recipe(recipe_for(world, tmp_path / "run", *changes), resume=steps == 8)
    for measure in ("eval_train_seconds", "eval_train_cpu_seconds"):
        spent = [entry[measure] for entry in history(tmp_path / "run")]
        assert len(spent) == 5
        assert spent == sorted(spent)


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


def test_with_several_held_out_sets_it_is_measured_once_an_evaluation(world: Path, tmp_path: Path) -> None:
    given = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "max_steps": 2, "eval_steps": 1}
    given |= {"bf16": False, "disable_tqdm": True, "max_length": 1000, "sample_predictions": 0}
    best = {"load_best_model_at_end": True, "metric_for_best_model": "habit_gap", "early_stopping_patience": 5}
    trainer = D2ETrainer(
        str(world / "model"),
        D2EConfig(str(tmp_path), **given, **best),
        train_dataset=make_samples(4),
        eval_dataset={"near": make_samples(2), "far": make_samples(3)},
        probe_dataset=probed(),
    )
    trainer.train()
    assert [entry["step"] for entry in history(tmp_path)] == [0, 1, 2]
    assert [entry["step"] for entry in trainer.state.log_history if "eval_near_loss" in entry] == [1, 2]
    assert trainer.state.best_metric == min(entry["eval_habit_gap"] for entry in history(tmp_path)[1:])


def test_from_python_it_needs_no_strategy(world: Path, tmp_path: Path) -> None:
    config = D2EConfig(str(tmp_path / "run"), max_steps=1, bf16=False, disable_tqdm=True, max_length=1000)
    rows = [sample.model_dump() for sample in make_samples(4)]
    D2ETrainer(str(world / "model"), config, train_dataset=rows, probe_dataset=f"{world}/probe.jsonl").train()
    assert [entry["step"] for entry in history(tmp_path / "run")] == [0, 1]


LOGS = {
    "loss": 5.64993, "grad_norm": 2.2, "learning_rate": 1e-5, "ce": 5.643, "kl": 0.007115,
    "mean_token_accuracy": 0.125, "plain_accuracy": 0.1, "bias_share": 0.0, "alpha": 0.5, "tokens_per_second": 1668.3,
    "epoch": 0.4,
}  # fmt: skip


def test_a_line_has_the_terms_that_count_and_its_header_comes_once() -> None:
    lines = LossLines()
    header, first = (line.split() for line in lines.lines(1, LOGS))
    assert dict(zip(header, first, strict=True)) == {
        "step": "1", "loss": "5.65", "ce": "5.643", "kl": "0.007115", "accuracy": "12.5", "tokens/s": "1,668"
    }  # fmt: skip
    assert len(lines.lines(1_000, {**LOGS, "tokens_per_second": 12_345.6})) == 1
    pairs = {**LOGS, "preference": 0.69, "rewards/accuracies": 0.75, "kl_rows": 0.34}
    header, first = (line.split() for line in LossLines().lines(1, pairs))
    assert dict(zip(header, first, strict=True)).items() >= {"preference": "0.69", "preferred": "75.0"}.items()
    own = {**LOGS, "refined_ce": 5.7, "imagined_ce": 8.1}
    header, first = LossLines().lines(1, own)
    shown = dict(zip(header.split(), first.split(), strict=True))
    assert shown.items() >= {"refined_ce": "5.7", "imagined_ce": "8.1"}.items()
    assert len(header) == len(first)
    single = {name: value for name, value in LOGS.items() if name != "kl"}
    assert "ce" not in LossLines().lines(1, single)[0].split(), "a single term is the loss"


def test_a_training_prints_lines_and_no_dict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dev = [make_sample(i, split="dev") for i in (10, 11)]
    probe = [make_sample(20, split="test", subset="aligned"), make_sample(21, split="test", subset="conflict")]
    make_world(tmp_path, train=4, dev=dev, probe=probe, bench=0)
    rows = [f"data.dev={tmp_path}/dev.jsonl", f"data.probe={tmp_path}/probe.jsonl"]
    recipe = write_recipe(tmp_path, tmp_path / "run", *rows, "train.max_steps=2", "train.eval_steps=2")
    train_recipe(load_recipe(str(recipe)))
    printed = capsys.readouterr().out
    first = next(
        line for line in printed.splitlines() if not line.startswith("[")
    )  # DeepSpeed's own, as it is imported
    assert first.startswith("objective: d2e; others: sft, teacher, prefer ")
    assert "{'" not in printed
    assert printed.count("tokens/s") == 1
    assert "step 2, held out: loss " in printed
    assert "step 0, aligned / conflict: plainly " in printed
    assert "step 2, aligned / conflict: plainly " in printed
    assert "2 steps in " in printed
    lines = [line for line in printed.splitlines() if "step" in line or line[:6].strip().isdigit()]
    assert len(lines) >= 6
    assert max(map(len, lines)) <= 100


def test_quiet_leaves_only_results_and_warnings(tmp_path: Path) -> None:
    make_world(tmp_path, train=4, bench=0)
    recipe = write_recipe(tmp_path, tmp_path / "run", "train.max_steps=2")
    called = call("train", recipe, "--quiet", f"data.dev={tmp_path}/train.jsonl", "train.sample_predictions=0")
    assert called.status == 0, called.err
    assert called.out == f"trained: {tmp_path / 'run'}\n"
    assert "nothing is held out" in called.err, "a warning"
    assert "step" in call("train", recipe, "--overwrite").out


EVALUATED = {"loss", "ce", "kl", "mean_token_accuracy", "plain_accuracy", "bias_share"}
LOGGED = {*EVALUATED, "alpha", "tokens_per_second"}
NAMES = {f"train/{name}" for name in LOGGED} | {f"eval/{name}" for name in EVALUATED}
TRACKERS = [name for name in ("tensorboard", "wandb", "trackio") if find_spec(name) is not None]


def needs(tracker: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(tracker not in TRACKERS, reason=f"{tracker} is not installed")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which two steps were trained in a process of its own, evaluated after both, told to all trackers."""
    dev = [make_sample(number, split="dev") for number in (20, 21)]
    folder = make_world(tmp_path_factory.mktemp("trackers"), dev=dev, bench=0)
    write_recipe(
        folder, folder / "run", f"data.dev={folder}/dev.jsonl", "d2e.alpha=0.7", "eval.max_new_tokens=4",
        "train.max_steps=2", "train.eval_steps=1", f"train.report_to={TRACKERS}", "train.project=boundary",
    )  # fmt: skip
    places = {"WANDB_MODE": "offline", "WANDB_DIR": str(folder), "WANDB_SILENT": "true"}
    places["TRACKIO_DIR"] = str(folder / "trackio")
    ended = program(folder, "d2e_sft.cli:main", "train", folder / "run.yaml", **places)
    assert ended.status == 0, ended.printed[-3000:]
    return folder


def evaluated(folder: Path) -> dict[int, dict[str, Any]]:
    """The run's own log by step, of what was evaluated."""
    return {entry["step"]: entry for entry in log_history(folder / "run") if "eval_loss" in entry}


def predictions(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "run" / "_held_out_predictions.jsonl").read_text().splitlines()]


@needs("tensorboard")
def test_tensorboard_gets_curves_and_the_table(trained: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    [folder] = {path.parent for path in (trained / "run" / "runs").rglob("events.out.*")}
    events = EventAccumulator(str(folder))
    events.Reload()
    assert set(events.Tags()["scalars"]) >= NAMES
    for event in events.Scalars("eval/ce"):
        assert event.value == pytest.approx(evaluated(trained)[event.step]["eval_ce"])
    assert [event.value for event in events.Scalars("train/alpha")] == pytest.approx([0.7, 0.7])
    tables = events.Tensors("held_out_predictions/text_summary")
    assert [table.step for table in tables] == [1, 2]
    shown = tables[1].tensor_proto.string_val[0].decode()
    for row in predictions(trained)[2:]:
        assert f" {row['id']} |" in shown
        assert " ".join(row["question"].split()) in shown


@needs("wandb")
def test_wandb_offline_gets_the_table(trained: Path) -> None:
    [file] = trained.rglob("*.wandb")
    tables = [json.loads(path.read_text()) for path in sorted(file.parent.rglob("*held_out_predictions_*.json"))]
    rows = [dict(zip(table["columns"], row, strict=True)) for table in tables for row in table["data"]]
    assert sorted(rows, key=str) == sorted(predictions(trained), key=str)


@needs("trackio")
def test_trackio_gets_curves_the_recipe_and_the_table(trained: Path) -> None:
    [file] = (trained / "trackio").rglob("boundary*.db")
    with sqlite3.connect(file) as database:
        logged = [json.loads(text) for (text,) in database.execute("SELECT metrics FROM metrics ORDER BY step")]
        [configured] = [json.loads(text) for (text,) in database.execute("SELECT config FROM configs")]
    assert {key for entry in logged for key in entry} >= NAMES
    found = [entry["eval/ce"] for entry in logged if "eval/ce" in entry]
    assert found == pytest.approx([entry["eval_ce"] for entry in evaluated(trained).values()])
    assert configured["recipe"]["d2e"]["alpha"] == 0.7
    tables = [entry["held_out_predictions"] for entry in logged if "held_out_predictions" in entry]
    assert len(tables) == 2
