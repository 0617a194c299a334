"""The run folder: fresh or used, an earlier run is refused, continued or cleared; the best model is what is left."""

import json
import re
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from peft import LoraConfig

from d2e_sft import D2EConfig, D2ETrainer
from d2e_sft.config.recipe import D2ESection, Recipe, load_recipe
from d2e_sft.model.loading import load_model
from d2e_sft.model.storage.seal import damage
from d2e_sft.train.run import train_recipe
from d2e_sft.train.run_folder import check_folder, checkpoints_of
from d2e_sft.util.errors import UserError
from tests.command import refusal_of
from tests.d2e_sft.train.test_messages import ROWS, SHORT
from tests.factories import log_history, make_world, write_recipe
from tests.messages import Call, messages_of
from tests.naive import encoded_rows
from tests.tiny import make_sample, tiny_model


def recipe(run: Path, train: str = "train.jsonl") -> Recipe:
    return Recipe.model_validate({"data": {"train": train}, "train": {"output_dir": str(run)}})


def used(*files: str, train: str = "train.jsonl", resume: bool = False, overwrite: bool = False) -> Call:
    """Start in a folder with these files."""

    def call(tmp: Path) -> str:
        for file in files:
            (tmp / file).parent.mkdir(exist_ok=True)
            (tmp / file).write_text("{}")
        asked = recipe(tmp, train.replace("TMP", str(tmp)))
        check_folder(asked, resume=resume, overwrite=overwrite)
        return "starts"

    return call


CHECKPOINT = ("recipe.yaml", "checkpoint-4/checksums.json", "model.safetensors")
test_message = messages_of(
    __file__,
    {
        "a fresh folder": used(),
        "a model that no run left": used("model.safetensors", overwrite=True),
        "a finished run to resume": used("model.safetensors", resume=True),
        "a run with a checkpoint": used(*CHECKPOINT),
        "a run with half a checkpoint": used("recipe.yaml", "checkpoint-4/x"),
        "a run that holds its own data": used("recipe.yaml", "rows.jsonl", train="TMP/rows.jsonl", overwrite=True),
    },
)


TOKENS = encoded_rows(D2ESection(), 6)
LONGER = {**TOKENS[0], "answer": [*TOKENS[0]["answer"], 7], "content": [*TOKENS[0]["content"], True]}
SECOND_CALLS: dict[str, tuple[list[Any], list[tuple[dict[str, Any], str]]]] = {
    "texts": (
        ROWS,
        [
            ({"objective": "sft"}, "\n  d2e.objective: 'd2e' → 'sft'"),
            ({"rank": 8}, "model.lora.r: 4 → 8"),
            ({"rows": ROWS[:5]}, "give other tokens now\n  samples: 6 → 5"),
        ],
    ),
    "tokens": (
        TOKENS,
        [
            ({"alpha": 0.9}, "\n  d2e.alpha: 0.5 → 0.9"),
            ({"rows": TOKENS[:5]}, "give other tokens now\n  samples: 6 → 5"),
            ({"rows": [LONGER, *TOKENS[1:]]}, "tokens, SHA-256"),
        ],
    ),
}


def contents(run: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("given", "refusals"), SECOND_CALLS.values(), ids=SECOND_CALLS)
def test_a_second_call_keeps_the_earlier_run(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], given: Any, refusals: Any
) -> None:
    run = tmp_path / "run"

    def trainer(rows: Any = given, rank: int = 4, **changes: Any) -> D2ETrainer:
        adapter = LoraConfig(r=rank, target_modules="all-linear")
        args = D2EConfig(str(run), **{**SHORT, "save_steps": 1, "save_total_limit": 10, **changes})
        return D2ETrainer(str(world / "model"), args, train_dataset=rows, peft_config=adapter)

    first = trainer()
    first.train()
    first.save_model()
    before = contents(run)
    with pytest.raises(UserError, match="already contains a run\n  remedy: continue it with --resume"):
        trainer(max_steps=1).train()
    for changes, told in refusals:
        for resumed in (True, str(run / "checkpoint-1")):
            with pytest.raises(UserError, match=re.escape(told)):
                trainer(**changes).train(resume_from_checkpoint=resumed)
    assert_stays_finished(trainer(save_total_limit=5), first, capsys)
    assert contents(run) == before
    (run / "trainer_state.json").unlink()
    trainer(datasets.Dataset.from_list(given), save_total_limit=5).train(resume_from_checkpoint=True)
    assert "resumed after step 2 of 2" in capsys.readouterr().out
    assert damage(run, cached=False) is None, "the recipe changed, and the model that was saved is still readable"
    assert len(list(run.glob("checkpoint-*"))) == 2
    trainer().train(resume_from_checkpoint=str(run / "checkpoint-1"))
    assert "resumed after step 1 of 2" in capsys.readouterr().out
    with pytest.raises(UserError, match="no such folder; expected a checkpoint-N"):
        trainer().train(resume_from_checkpoint=str(run / "checkpoint-9"))
    trainer(max_steps=1, overwrite_output_dir=True).train()
    assert [path.name for path in run.glob("checkpoint-*")] == ["checkpoint-1"]
    assert not (run / "adapter_model.safetensors").exists()


def assert_stays_finished(again: D2ETrainer, first: D2ETrainer, capsys: pytest.CaptureFixture[str]) -> None:
    """Another trainer in the folder of a finished run trains nothing, and has its weights, state and result."""
    capsys.readouterr()
    result = again.train(resume_from_checkpoint=True)
    assert capsys.readouterr().out == f"{first.args.output_dir}: is finished; nothing is left to train\n"
    assert again.state.log_history == first.state.log_history
    assert (result.global_step, result.training_loss) == (2, first.state.log_history[-1]["train_loss"])
    weights, expected = again.model.state_dict(), first.model.state_dict()
    assert all(torch.equal(weights[name], tensor) for name, tensor in expected.items())


def test_rows_of_tokens_leave_a_recipe_and_a_run_without_a_checkpoint_stays_finished(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def trainer(**changes: Any) -> D2ETrainer:
        args = D2EConfig(str(tmp_path), alpha=0.3, **{**SHORT, **changes})
        return D2ETrainer(tiny_model(), args, train_dataset=TOKENS)

    first = trainer()
    first.train()
    first.save_model()
    assert "training samples: 6, given as tokens" in capsys.readouterr().out
    recipe = load_recipe(tmp_path / "recipe.yaml")
    assert (recipe.d2e.alpha, recipe.train.max_steps, recipe.model.name) == (0.3, 2, "LlamaForCausalLM")
    again = refusal_of("train", tmp_path / "recipe.yaml", f"train.output_dir={tmp_path / 'again'}")
    assert "the rows of this run were given as tokens" in again
    assert_stays_finished(trainer(), first, capsys)
    with pytest.raises(UserError, match="is finished, and contains no checkpoint to continue from"):
        trainer(max_steps=3).train(resume_from_checkpoint=True)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    held_out = [make_sample(i, split="dev", answers=["a stone"]) for i in range(4)]
    aligned = [make_sample(i, subset="aligned") for i in range(4)]
    probe = [*aligned, *(make_sample(i + 9, subset="conflict") for i in range(4))]
    return make_world(tmp_path_factory.mktemp("best"), train=4, dev=held_out, probe=probe, bench=0)


def recipe_best_model(world: Path, run: Path, *overrides: str) -> Recipe:
    """A learning rate at which held-out loss soon rises; evaluated and saved at every step."""
    keys = {
        "max_steps": 8, "per_device_train_batch_size": 4, "learning_rate": 0.1, "eval_steps": 1, "save_steps": 1,
        "lr_scheduler_type": "constant", "warmup_steps": 0, "sample_predictions": 2, "load_best_model_at_end": "true",
    }  # fmt: skip
    given = [f"data.dev={world}/dev.jsonl", "eval.max_new_tokens=3", *(f"train.{k}={v}" for k, v in keys.items())]
    return load_recipe(str(write_recipe(world, run, *given)), overrides)


def state(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "trainer_state.json").read_text())
    return found


def evaluations(run: Path, name: str = "eval_loss") -> list[float]:
    return [entry[name] for entry in log_history(run) if name in entry]


def test_the_run_ends_with_the_weights_of_its_best_evaluation(world: Path, tmp_path: Path) -> None:
    run = train_recipe(recipe_best_model(world, tmp_path / "run", "train.early_stopping_patience=2"))
    losses = evaluations(run)
    best = losses.index(min(losses)) + 1
    assert best < len(losses) < 8, "the loss rose, and after two evaluations without progress training stopped"
    assert len(losses) == best + 2
    assert state(run)["best_model_checkpoint"] == str(run / f"checkpoint-{best}")
    kept = checkpoints_of(run)
    assert [folder.name for folder in kept] == [f"checkpoint-{best + 2}", f"checkpoint-{best}"]
    assert [damage(folder, cached=False) for folder in kept] == [None, None]
    assert json.loads((kept[0] / "trainer_state.json").read_text())["best_model_checkpoint"] == str(kept[1])
    whole, expected = (load_model(str(folder)).model.state_dict() for folder in (run, kept[1]))
    assert all(torch.equal(whole[name], weights) for name, weights in expected.items())
    # Killed before its end and resumed, it has stopped.
    (run / "trainer_state.json").unlink()
    train_recipe(recipe_best_model(world, tmp_path / "run", "train.early_stopping_patience=2"), resume=True)
    assert evaluations(run) == losses


def test_a_best_model_is_saved_between_two_checkpoints_and_found_in_a_moved_run(world: Path, tmp_path: Path) -> None:
    run, moved = tmp_path / "run", tmp_path / "moved"
    train_recipe(recipe_best_model(world, run, "train.save_steps=8"))
    losses = evaluations(run)
    best = losses.index(min(losses)) + 1
    assert best < 8
    assert [folder.name for folder in checkpoints_of(run)] == ["checkpoint-8", f"checkpoint-{best}"]
    expected = load_model(str(run)).model.state_dict()
    of_best = load_model(str(run / f"checkpoint-{best}")).model.state_dict()
    assert all(torch.equal(of_best[name], weights) for name, weights in expected.items())
    (run / "trainer_state.json").unlink()  # killed before its end
    run.rename(moved)
    train_recipe(recipe_best_model(world, moved, "train.save_steps=8"), resume=True)
    found = load_model(str(moved)).model.state_dict()
    assert all(torch.equal(found[name], weights) for name, weights in expected.items())


def test_any_value_of_an_evaluation_may_say_what_is_best(world: Path, tmp_path: Path) -> None:
    probe = f"data.probe={world}/probe.jsonl"
    for metric, rows, which in (("eval_f1", [], max), ("habit_gap", [probe, "data.dev=null"], min)):
        options = (*rows, f"train.metric_for_best_model={metric}", "train.max_steps=2")
        run = train_recipe(recipe_best_model(world, tmp_path / metric, *options))
        values = evaluations(run, f"eval_{metric.removeprefix('eval_')}")[-2:]  # without that before training
        best = which(values)
        assert state(run)["best_metric"] == best
        assert state(run)["best_global_step"] == values.index(best) + 1
