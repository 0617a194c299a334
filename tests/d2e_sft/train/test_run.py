"""A killed and resumed run has the same losses and weights, bit for bit, as an uninterrupted one."""

import os
import pickle
import shutil
import signal
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from d2e_sft import cli
from d2e_sft.config.recipe import D2ESection, load_recipe
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.sample import write_samples
from d2e_sft.model.storage.seal import damage
from d2e_sft.train.checkpoints import seal_checkpoint
from d2e_sft.train.config import D2EConfig
from d2e_sft.train.run_folder import checkpoints_of
from d2e_sft.train.trainer import D2ETrainer
from tests.command import Ended, Kill, after_step, call, finish, output_of, refusal_of, start, train
from tests.factories import Unpickled, log_history, make_world, write_recipe
from tests.naive import encoded_rows
from tests.servers import free_port
from tests.tiny import make_sample, make_samples, tiny_model

# 11 samples in batches of 2 × 2: three steps an epoch, the last of them short; two epochs, dropout in each step.
STEPS = 6
COMPARED = ("step", "loss", "ce", "kl", "preference", "rewards/margins", "grad_norm", "learning_rate")
CHECKPOINTS = "d2e_sft.train.checkpoints:"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with dropout, and 11 samples."""
    samples = [
        make_sample(number, rejected=["a fish"] * (number % 3 > 0), subset="aligned" if number % 5 else "conflict")
        for number in range(11)
    ]
    return make_world(tmp_path_factory.mktemp("resume"), train=samples, bench=0, kinds={"dropout": "gpt2-dropout"})


def recipe(world: Path, out: Path, **changes: Any) -> Path:
    """A recipe of two epochs that trains into `out/run`; `changes` are its overrides, with `__` for the dot."""
    given = {"model__name": world / "dropout", "train__max_steps": STEPS, "train__save_steps": 2, **changes}
    overrides = [f"{key.replace('__', '.')}={value}" for key, value in given.items()]
    return write_recipe(world, out / "run", *overrides)


def history(run: Path) -> list[dict[str, Any]]:
    """The logged steps, with the values that must not depend on a kill; JSON keeps every bit of a float."""
    logged = [entry for entry in log_history(run) if "loss" in entry]
    return [{name: entry[name] for name in COMPARED if name in entry} for entry in logged]


def weights(run: Path) -> dict[str, torch.Tensor]:
    name = "model" if (run / "model.safetensors").is_file() else "adapter_model"
    return load_file(run / f"{name}.safetensors")


def assert_same_run(resumed: Path, whole: Path) -> None:
    assert history(resumed) == history(whole)
    ours, theirs = weights(resumed), weights(whole)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def kill_in_turn(out: Path, path: Path, *kills: Kill) -> None:
    """Train and die, resume and die, and so on."""
    for i, kill in enumerate(kills):
        ended = train(out, [path, *(["--resume"] if i else [])], kill)
        assert ended.status == -signal.SIGKILL, ended.printed


def resume(out: Path, *arguments: str | Path) -> Ended:
    ended = train(out, [*arguments, "--resume"])
    assert ended.status == 0, ended.printed
    return ended


@pytest.fixture(scope="module")
def whole(world: Path) -> Path:
    out = world / "whole"
    ended = train(world, [recipe(world, out)])
    assert ended.status == 0, ended.printed
    assert [entry["step"] for entry in history(out / "run")] == list(range(1, STEPS + 1))
    assert [path.name for path in checkpoints_of(out / "run")] == ["checkpoint-6", "checkpoint-4"]
    assert not (out / "run" / ".saving").exists()
    return out / "run"


KILLS: dict[str, tuple[list[Kill], str | None]] = {
    "before the first checkpoint": ([after_step(1)], None),
    "twice after a step": ([after_step(3), after_step(3)], "checkpoint-4"),
    "between model and optimizer": (
        [Kill("transformers:Trainer._save_optimizer_and_scheduler", call=2)],
        "checkpoint-2",
    ),
    "before the checkpoint is sealed": ([Kill(CHECKPOINTS + "seal", call=2)], "checkpoint-2"),
    "before the old checkpoint is removed": ([Kill(CHECKPOINTS + "_rotate", call=3)], "checkpoint-6"),
    "while the model is saved": ([Kill(CHECKPOINTS + "_move_model")], "checkpoint-6"),
}


@pytest.mark.parametrize(("kills", "checkpoint"), KILLS.values(), ids=KILLS)
def test_a_killed_run_continues_as_if_it_had_not_been(
    world: Path, whole: Path, tmp_path: Path, kills: list[Kill], checkpoint: str | None
) -> None:
    path = recipe(world, tmp_path)
    kill_in_turn(tmp_path, path, *kills)
    found = checkpoints_of(tmp_path / "run")
    assert (found[0].name if found else None) == checkpoint
    if checkpoint is None:
        shown = call("train", path, "--resume", "--dry-run", "--without-weights")
        assert (shown.out + shown.err).count("from the beginning") == 1
    printed = resume(tmp_path, path).printed
    assert "passed over" not in printed, "a kill leaves whole checkpoints only"
    step = checkpoint and checkpoint.removeprefix("checkpoint-")
    told = f"resumed after step {step} of 6" if step else "no complete checkpoint: training starts from the beginning"
    assert told in printed
    assert_same_run(tmp_path / "run", whole)
    assert not (tmp_path / "run" / ".saving").exists()


@pytest.mark.parametrize(
    ("changes", "steps"),
    [
        ({"train__save_steps": 3, "train__logging_steps": 4}, [1, 3, 4, 6]),
        ({"model__lora": {"r": 2, "lora_dropout": 0.1}, "train__per_device_train_batch_size": 4}, [1, 2, 3, 4, 5, 6]),
        ({"d2e__objective": "prefer"}, [1, 2, 3, 4, 5, 6]),
        ({"data__balance": 0.5}, [1, 2, 3, 4, 5, 6]),
        ({"data__balance": 0.4, "train__micro_batch_tokens": 300, "train__rows_per_context": 2}, [1, 2, 3, 4, 5, 6]),
    ],
    ids=["at an epoch's end, between two logs", "an adapter", "preferences", "balanced", "balanced, by tokens"],
)
def test_other_runs_continue_alike(
    world: Path, tmp_path: Path, changes: dict[str, Any], steps: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("D2E_CACHE", str(tmp_path / "cache"))
    whole, path = recipe(world, tmp_path / "whole", **changes), recipe(world, tmp_path, **changes)
    assert train(tmp_path / "whole", [whole]).status == 0
    kill_in_turn(tmp_path, path, after_step(3))
    resume(tmp_path, path)
    assert [entry["step"] for entry in history(tmp_path / "run")] == steps
    assert_same_run(tmp_path / "run", tmp_path / "whole" / "run")


def _two_processes(folder: Path, arguments: Sequence[str | Path], kill: Kill | None = None) -> list[Ended]:
    port = str(free_port())
    launcher = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks = [
        start(folder, arguments, kill if rank == 0 else None, {**launcher, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(2)
    ]
    return [finish(rank) for rank in ranks]


def test_two_processes_save_one_checkpoint_and_continue_from_it(world: Path, tmp_path: Path) -> None:
    whole, path = recipe(world, tmp_path / "whole"), recipe(world, tmp_path)
    ended = _two_processes(tmp_path / "whole", [whole])
    assert [rank.status for rank in ended] == [0, 0], ended
    killed = _two_processes(tmp_path, [path], Kill(CHECKPOINTS + "seal", call=2))
    assert killed[0].status == -signal.SIGKILL, killed
    assert [found.name for found in checkpoints_of(tmp_path / "run")] == ["checkpoint-2"]
    assert (tmp_path / "run" / "checkpoint-2" / "rng_state_1.pth").is_file(), "the other process's part"
    resumed = _two_processes(tmp_path, [path, "--resume"])
    assert [rank.status for rank in resumed] == [0, 0], resumed
    assert_same_run(tmp_path / "run", tmp_path / "whole" / "run")
    refused = _two_processes(tmp_path, [path, "--resume", "d2e.alpha=0.9"])
    assert [rank.status for rank in refused] == [1, 1], refused
    assert "d2e.alpha: 0.5 → 0.9" in refused[0].printed


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


@pytest.fixture
def finished(world: Path, whole: Path, tmp_path: Path) -> Path:
    """A copy of the whole run, with checkpoints 4 and 6; returns its recipe."""
    shutil.copytree(whole, tmp_path / "run")
    return recipe(world, tmp_path)


@pytest.fixture
def stopped(finished: Path) -> Path:
    """The same, killed after its last checkpoint and before its end."""
    (finished.parent / "run" / "trainer_state.json").unlink()
    return finished


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(stopped: Path, whole: Path) -> None:
    out = stopped.parent
    _cut(out / "run" / "checkpoint-6" / "optimizer.pt")
    size = (whole / "checkpoint-6" / "optimizer.pt").stat().st_size
    printed = " ".join(resume(out, stopped).printed.split())  # it is folded
    assert f"checkpoint-6: optimizer.pt has {size - 1:,} bytes; expected {size:,}" in printed
    assert_same_run(out / "run", whole)
    assert damage(out / "run" / "checkpoint-6", cached=False) is None, "it was written again"


def _damage_all(run: Path) -> None:
    _cut(run / "checkpoint-6" / "optimizer.pt")
    (run / "checkpoint-4" / "scheduler.pt").unlink()


def _write_other_rows(run: Path) -> None:
    write_samples([*make_samples(11), make_sample(11)], run.parent / "other.jsonl")


def _write_other_wording(run: Path) -> None:
    wording = (Path(cli.__file__).parent / "data" / "prompt_sets" / "default.yaml").read_text(encoding="utf-8")
    (run.parent / "other.yaml").write_text(wording.replace("{question}", "{question} Think."), encoding="utf-8")


def _old_form(state: Any, path: Path) -> None:
    torch.save(state, path, _use_new_zipfile_serialization=False)


def _pickle(state: Any, path: Path) -> None:
    path.write_bytes(pickle.dumps(state))


@pytest.mark.parametrize(
    ("name", "write"),
    [
        *((name, torch.save) for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth", "global_step6/states.pt")),
        ("optimizer.pt", _old_form),
        ("scheduler.pt", _pickle),
        ("rng_state.pth", lambda _, path: torch.save({"python": 1}, path)),
        ("rng_state.pth", lambda _, path: torch.save([], path)),
        ("optimizer.pt", lambda _, path: torch.save({}, path)),
        ("scheduler.pt", lambda _, path: path.write_bytes(b"")),
        ("trainer_state.json", lambda _, path: path.write_text('{"global_step": "six"}')),
        ("trainer_state.json", lambda _, path: path.write_text("[]")),
        ("latest", lambda _, path: path.write_text("../elsewhere")),
    ],
)
def test_a_foreign_state_is_named_not_loaded(stopped: Path, name: str, write: Callable[[Any, Path], None]) -> None:
    checkpoint, executed = stopped.parent / "run" / "checkpoint-6", stopped.parent / "executed"
    (checkpoint / name).parent.mkdir(exist_ok=True)
    write({"state": Unpickled(os.system, f"touch {executed}")}, checkpoint / name)
    seal_checkpoint(checkpoint, {})
    message = " ".join(refusal_of("train", stopped, "--resume").split())
    assert f"checkpoint-6/{name}: is not a state that `d2e train` wrote" in message
    assert not executed.exists()


@pytest.mark.parametrize(
    ("prepare", "overrides", "expected"),
    [
        (_damage_all, [], ["every checkpoint is damaged", "-6: optimizer.pt has", "-4: scheduler.pt is missing"]),
        (
            lambda run: None,
            ["d2e.alpha=0.9", "train.seed=1", "model.lora.r=2"],
            ["was started with another recipe", "d2e.alpha: 0.5 → 0.9", "train.seed: 0 → 1", "model.lora"],
        ),
        (
            _write_other_rows,
            ["data.train={out}/other.jsonl"],
            ["was started with other data", "train.jsonl (11 rows, ", " → {out}/other.jsonl (12 rows, "],
        ),
        (
            _write_other_wording,
            ["data.prompt_set={out}/other.yaml"],
            ["data.prompt_set: default (", " → {out}/other.yaml ("],
        ),
        (lambda run: (run / "recipe.yaml").unlink(), [], ["no recipe.yaml, so its recipe is unknown"]),
        (lambda run: (run / "data.json").unlink(), [], ["no data.json, so its training data are unknown"]),
        (lambda run: os.truncate(run / "data.json", 9), [], ["its data.json is not readable"]),
    ],
    ids=["damage", "recipe", "rows", "wording", "no recipe", "no record", "record cut"],
)
def test_resuming_is_refused_with_what_differs(
    stopped: Path, prepare: Callable[[Path], Any], overrides: list[str], expected: list[str]
) -> None:
    out = stopped.parent
    prepare(out / "run")
    printed = refusal_of("train", stopped, *(text.format(out=out) for text in overrides), "--resume")
    for text in expected:
        assert text.format(out=out) in printed


def test_a_run_stays_as_it_was_when_keys_without_effect_differ(world: Path, stopped: Path, whole: Path) -> None:
    moved = shutil.copy(world / "train.jsonl", stopped.parent / "moved.jsonl")
    record = stopped.parent / "run" / "data.json"
    record.write_text(record.read_text().replace('"processes": 1', '"processes": 4'))
    ended = resume(stopped.parent, stopped, f"data.train={moved}", "eval.batch_size=3", "train.logging_steps=2")
    assert_same_run(stopped.parent / "run", whole)
    # The number of processes may differ too, with a warning; it is folded.
    assert "losses may be rounded differently: processes: 4 → 1" in " ".join(ended.printed.split())


def test_a_finished_run_stays_as_it_is(finished: Path) -> None:
    run = finished.parent / "run"
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in run.rglob("*") if path.is_file()}
    for flags in (["--resume"], ["--auto-resume"], ["--resume", "--dry-run", "--without-weights"]):
        assert f"{run}: is finished; nothing" in output_of("train", finished, *flags)
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in before} == before


def test_a_finished_run_can_be_trained_for_more_steps(finished: Path) -> None:
    run = finished.parent / "run"
    before = history(run)
    ended = train(finished.parent, [finished, "--resume", "train.max_steps=8"], after_step(1))
    assert ended.status == -signal.SIGKILL, ended.printed
    assert "train.max_steps: 6 → 8" in ended.printed
    continued = " ".join(resume(finished.parent, finished, "train.max_steps=8").printed.split())
    assert "resumed after step 6 of 8" in continued
    assert "2 of 8 steps in " in continued
    assert history(run)[:STEPS] == before
    assert [entry["step"] for entry in history(run)] == list(range(1, 9))
    assert "train.max_steps: 8 → 7" in refusal_of("train", finished, "train.max_steps=7", "--resume")


def test_resuming_with_another_chat_template_is_refused(world: Path, stopped: Path) -> None:
    template = world / "dropout" / "chat_template.jinja"
    text = template.read_text(encoding="utf-8")
    try:
        template.write_text(text.replace("<|end|>", "<|end|> "), encoding="utf-8")
        printed = refusal_of("train", stopped, "--resume")
    finally:
        template.write_text(text, encoding="utf-8")
    assert "the training rows give other tokens now" in printed


@pytest.mark.parametrize("fast", [True, False])
def test_a_resumed_run_keeps_its_precision_on_another_processor(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fast: bool
) -> None:
    path = recipe(world, tmp_path, train__bf16="null", train__max_steps=2, train__save_steps=1)
    monkeypatch.setattr("d2e_sft.model.device.cpu_has_bfloat16", lambda: fast)
    slow = "slow on a CPU without bfloat16 instructions"
    assert slow not in call("train", path).err
    uninterrupted, run = weights(tmp_path / "run"), tmp_path / "run"
    for name in ("checkpoint-2", "model.safetensors", "trainer_state.json"):
        shutil.rmtree(run / name) if (run / name).is_dir() else (run / name).unlink()
    monkeypatch.setattr("d2e_sft.model.device.cpu_has_bfloat16", lambda: not fast)
    assert (slow in call("train", path, "--resume").err) is fast
    assert load_recipe(run / "recipe.yaml").train.bf16 is fast
    assert all(torch.equal(one, uninterrupted[name]) for name, one in weights(run).items())


STORED = Path(__file__).with_name("trajectory.yaml")
# nats a token. Another number of threads changes these numbers by 5e-7, α = 0.51 instead of 0.5 by 1e-2.
TOLERANCE = 2e-6
OBJECTIVES = {"d2e": D2ESection(), "sft": D2ESection(debias=False, distill=False)}


def losses(folder: Path, d2e: D2ESection, steps: int = 20) -> dict[str, list[float]]:
    """`loss`, `ce` and `kl` (nats a token) of each step, unrounded."""
    args = D2EConfig(
        str(folder), max_steps=steps, per_device_train_batch_size=2, gradient_accumulation_steps=2,
        learning_rate=1e-3, lr_scheduler_type="constant", warmup_steps=0, weight_decay=0.0, seed=42, logging_steps=1,
        bf16=False, disable_tqdm=True, use_cpu=True, **d2e.model_dump(),
    )  # fmt: skip
    trainer = D2ETrainer(tiny_model("llama"), args, train_dataset=encoded_rows(d2e, 8, load_prompt_set("default")))
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    return {name: [entry[name] for entry in logged] for name in ("loss", "ce", "kl") if name in logged[0]}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_losses_are_the_stored_ones(tmp_path: Path, name: str) -> None:
    stored = yaml.safe_load(STORED.read_text(encoding="utf-8"))[name]
    found = losses(tmp_path, OBJECTIVES[name])
    for part, values in stored.items():
        assert found[part] == pytest.approx(values, rel=0, abs=TOLERANCE), part


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        found = {name: losses(Path(folder), d2e) for name, d2e in OBJECTIVES.items()}
    text = yaml.safe_dump(found, default_flow_style=None, width=110, sort_keys=False)
    STORED.write_text(text, encoding="utf-8")
